"""The six acceptance stages for a new GPU: what each of them proves, needs and runs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.acceptance.budget import SECONDS, StageWork, run_work
from bench.acceptance.loop import Loop
from bench.acceptance.results import Goal, PartResult
from bench.acceptance.setting import Setting
from bench.acceptance.speed import Speed
from bench.harness.peers import peers_python
from bench.harness.processes import variant_processes

PRELOADED = ("bitsandbytes", "peft", "worker.train", "worker.pretrain")
PARITY = ("nf4", "attention", "lora", "kernels", "linear attention")
SCANS = ("reference", "own", "triton", "fla")
KERNELS = ("norm and sum", "norm of queries", "rotary embeddings", "SwiGLU", "convolution", "delta rule")
"""Parts of this package's programs, listed here because importing the programs takes seconds."""
MARKED = "tests/worker/training/model"
"""Folder of the tests marked `gpu`, except those of the stages."""
SCAN_TOKENS, SMOKE_SCAN_TOKENS = (1024, 2048, 4096, 8192), (128, 256)
SCAN_GOALS = {"own": "A5-speed", "triton": "A5-triton-speed"}
SCAN_FASTER = 5.0
"""Minimum speed relative to transformers' reference, on rows of 4,096 tokens; in the model it moves a sixteenth of the
bytes.
"""


@dataclass(frozen=True)
class AcceptanceStage:
    """One acceptance stage.

    Attributes:
        proves: the claim that is proven once it passes.
        needs: requirements beyond torch, transformers, peft, bitsandbytes and the trainer's small packages.
        work: function that returns its parts.
    """

    proves: str
    needs: str
    work: Callable[[Setting], StageWork]


def parity_work(setting: Setting) -> StageWork:
    """Return the comparisons of values, and the tests marked `gpu`; on a CPU these are only collected."""
    return StageWork({**setting.parts("parity", PARITY), "marked tests": partial(marked_tests, setting)})


def marked_tests(setting: Setting) -> PartResult:
    """Run pytest; none of the tests may be skipped."""
    collect = ["--collect-only"] if setting.device == "cpu" else []
    options = ["-q", "-p", "no:cacheprovider", "--assert=plain", "-m", "gpu", *collect, MARKED]
    output = setting.processes.run(Path(sys.executable), "pytest", *options)
    summary = output.strip().splitlines()[-1]
    return PartResult({"pytest": summary}, [Goal("A1-marked", summary.count("skipped"), 0, facts={"summary": summary})])


def loop_work(setting: Setting) -> StageWork:
    """Return the runs of the trainer."""
    return Loop(setting).work()


def speed_work(setting: Setting) -> StageWork:
    """Return the comparison of goals G1 to G5, and a profile."""
    return Speed(setting).work()


def memory_work(setting: Setting) -> StageWork:
    """Return one part for each size of a base."""
    sizes, tokens = (["tiny"], ["512"]) if setting.smoke else (["0.6B", "4B", "8B"], ["4096", "8192", "16384"])
    return StageWork(setting.parts("memory", sizes, *tokens))


def scan_work(setting: Setting) -> StageWork:
    """Return one part for each scan; the conclusion compares the trainer's scans with transformers'."""
    tokens = SMOKE_SCAN_TOKENS if setting.smoke else SCAN_TOKENS
    results: dict[str, PartResult] = {}

    def measured(variant: str) -> PartResult:
        results[variant] = setting.part("scan", variant, *map(str, tokens))
        return results[variant]

    def conclude() -> bool:
        if not SCAN_GOALS.keys() | {"reference"} <= results.keys():
            return False
        column = f"{tokens[-2]} tokens, ms"
        reference = float(results["reference"].figures[column])
        verdicts = []
        for variant, name in SCAN_GOALS.items():
            ratio = reference / float(results[variant].figures[column])
            goal = Goal(name, ratio, SCAN_FASTER, at_most=False, facts={"tokens": tokens[-2]})
            verdicts.append(goal.judge(smoke=setting.smoke))
        return all(verdicts)

    return StageWork({variant: partial(measured, variant) for variant in SCANS}, conclude)


def kernels_work(setting: Setting) -> StageWork:
    """Return one part for each kernel."""
    return StageWork(setting.parts("kernels", KERNELS, setting.size))


STAGES = {
    "parity": AcceptanceStage(
        "NF4, attention, fused LoRA and Triton's kernels give the same results on the card as elsewhere",
        "pytest and the tests' packages (last part only)",
        parity_work,
    ),
    "loop": AcceptanceStage(
        "training from start to end, resuming, retrying after running out of memory; the same losses as "
        "transformers.Trainer",
        "-",
        loop_work,
    ),
    "speed": AcceptanceStage(
        "goals G1 to G5, and kernel time by group compared with the modelled step", "TRL and Unsloth for G1", speed_work
    ),
    "memory": AcceptanceStage(
        "predicted memory matches what the allocator takes: three sizes, up to 16k tokens", "-", memory_work
    ),
    "scan": AcceptanceStage(
        "Qwen3.5's linear attention is correct, and its time grows linearly with the row's length",
        "flash-linear-attention (last part only)",
        scan_work,
    ),
    "kernels": AcceptanceStage("Triton's kernels are faster than torch's formulas", "a C compiler", kernels_work),
}
"""The stages in the order in which to run them: a later one means little if an earlier one fails."""


def print_stages() -> None:
    """Print a line for each stage."""
    print(f"Each stage takes at most {SECONDS:.0f} s; with --device cpu --smoke it runs on a CPU.")
    for name, stage in STAGES.items():
        print(f"{name:<8} proves: {stage.proves}; needs: {stage.needs}")


def accept(name: str, device: str, size: str, *, smoke: bool, seconds: float = SECONDS) -> bool:
    """Run a stage.

    Args:
        size: base of the stages `speed` and `kernels`.

    Returns:
        whether every part was done and every goal is met.
    """
    # CUDA does not survive a fork, and bitsandbytes starts it when it is imported.
    forked = smoke and device == "cpu"
    # The forked interpreter has to have the peers of the one stage with peers.
    python = peers_python() if forked and name == "speed" else Path(sys.executable)
    with (
        tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder,
        variant_processes(smoke=forked, python=python, preloaded=PRELOADED) as processes,
    ):
        setting = Setting(device=device, size=size, smoke=smoke, processes=processes, folder=Path(folder))
        return run_work(name, STAGES[name].work(setting), smoke=smoke, seconds=seconds)

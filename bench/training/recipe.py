"""One LoRA recipe for several trainers: same base, same encoded rows in the same steps, same rates, same initial adapter.

The product's trainer runs as in the product (``python -m worker.train plan.json run_dir``); a peer gets the rows from
the product's tokenisation, in the order of the product's steps, and is run by ``bench/training/train_variants.py`` in the peers'
environment. ``bench/training/training_inputs.py`` makes the base, the plan and the recipe.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bench.harness.command import BenchFailed
from bench.harness.peers import peers_python
from bench.harness.processes import Processes
from bench.training.shapes import Shape
from worker.jobs.child_environment import ALLOCATOR

UNTIMED_STEPS = 2
EncodedRow = dict[str, list[int]]
Quant = Literal["nf4", "none"]
"""Format of the frozen base in memory: NF4 with double quantisation; or unquantised, in float32 on a CPU and in bf16 on
a GPU.
"""


@dataclass(frozen=True)
class Recipe:
    """Inputs of every trainer.

    Attributes:
        base: model folder.
        rows: ``{"input_ids", "labels"}`` of each row (label -100: not supervised), in the order of the steps.
        held_out: rows used only to compare losses.
        rates: learning rate of each optimizer step.
        rows_per_batch: rows per micro-batch, for trainers that count in rows.
        device: ``cpu`` (fp32) or ``cuda`` (bf16).
    """

    base: str
    rows: list[EncodedRow]
    held_out: list[EncodedRow]
    rates: list[float]
    rows_per_batch: int = 8
    grad_accum: int = 2
    seq_len: int = 2048
    rank: int = 16
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    seed: int = 7
    device: str = "cpu"
    quant: Quant = "nf4"
    checkpointing: bool = False

    @property
    def rows_per_step(self) -> int:
        return self.rows_per_batch * self.grad_accum

    def tokens(self, first_step: int = 0) -> int:
        """Return the number of tokens of all steps from a 0-based step on, without padding."""
        return sum(len(row["input_ids"]) for row in self.rows[first_step * self.rows_per_step :])

    def first(self, steps: int) -> Recipe:
        """Return the recipe with only its first steps."""
        return replace(self, rows=self.rows[: steps * self.rows_per_step], rates=self.rates[:steps])

    def targets(self, step: int) -> int:
        """Return the supervised positions of a 0-based step."""
        rows = self.rows[step * self.rows_per_step : (step + 1) * self.rows_per_step]
        return sum(label != -100 for row in rows for label in row["labels"][1:])

    def write(self, path: Path) -> Path:
        """Write the recipe as JSON; return the path."""
        path.write_text(json.dumps(asdict(self)))
        return path


@dataclass(frozen=True)
class InputsRequest:
    """Files for ``bench/training/training_inputs.py`` to make.

    Attributes:
        base: shape of a new base, whose vocabulary bounds the tokenizer's; or a model's folder.
        rows: rows of the training file.
        held_out_rows: rows of the validation file.
        execution: fields of the contract's section ``exec`` beyond the recipe's defaults.
        device: device of the training, ``cpu`` or ``cuda``.
        pretraining_steps: steps of a new base; 0 leaves its weights random, because speed does not depend on them.
    """

    base: Shape | str
    rows: int
    held_out_rows: int
    execution: dict[str, int]
    device: str = "cpu"
    quant: Quant = "nf4"
    pretraining_steps: int = 0


@dataclass
class TrainerOutcome:
    """Result of one trainer.

    Attributes:
        tokens_per_second: useful tokens per second of the timed steps.
        tokens_per_cpu_second: the same per second of CPU time of all threads, which other programs disturb less.
        losses: mean loss per supervised token of each step; empty if the rows of a step differ from the recipe's.
        grad_norms: gradient norms before clipping.
        peak_bytes: device memory on a GPU, resident set on a CPU.
        adapter: folder of the adapter.
        facts: further measurements of the variant.
    """

    tokens_per_second: float
    tokens_per_cpu_second: float
    losses: list[float]
    grad_norms: list[float]
    peak_bytes: int
    adapter: str
    facts: dict[str, Any] = field(default_factory=dict)


class Trainers:
    """The product's trainer and its peers, on one recipe.

    Args:
        processes: processes that run them.
        folder: folder for inputs and run folders.
        request: base, rows and settings.
        threads: threads of each trainer.
        peers: interpreter of the peers; None: their own environment's.

    Raises:
        VariantFailed: the inputs cannot be made.
        PeerMissing: the peers cannot be installed.
    """

    def __init__(
        self, processes: Processes, folder: Path, request: InputsRequest, threads: int, peers: Path | None = None
    ) -> None:
        self._processes, self.folder, self._threads = processes, folder, str(threads)
        self.peers = peers or peers_python()
        self.run("bench.training.training_inputs", json.dumps(asdict(request)), str(folder))
        self.recipe = Recipe(**json.loads((folder / "recipe.json").read_text()))

    def run(self, module: str, *arguments: str) -> str:
        """Return the standard output of a module, run in this environment, with the product's allocator on a GPU."""
        return self._processes.run(Path(sys.executable), module, *arguments, OMP_NUM_THREADS=self._threads, **ALLOCATOR)

    def train(self, run_name: str, module: str = "bench.training.timed_trainer", *arguments: str) -> TrainerOutcome:
        """Train with the product, and read its telemetry.

        Args:
            run_name: name of the run folder.
            module: module that runs the trainer.
            arguments: arguments of the module, before the plan and the run folder.

        Raises:
            BenchFailed: its rows or rates differ from the recipe's.
        """
        run_folder = self.folder / run_name
        run_folder.mkdir()
        shutil.copy(self.folder / "plan.json", run_folder)
        self.run(module, *arguments, str(run_folder / "plan.json"), str(run_folder))
        events = [json.loads(line) for line in (run_folder / "telemetry.jsonl").read_text().splitlines()]
        return self._outcome(run_folder, events)

    def _outcome(self, run_folder: Path, events: list[dict[str, Any]]) -> TrainerOutcome:
        steps = [event for event in events if event["event"] == "step"]
        reports = [step["payload"] for step in steps]
        if [report["valid_tokens"] for report in reports] != [self.recipe.targets(at) for at in range(len(reports))]:
            raise BenchFailed("the rows of the product's steps differ from the peers'")
        if any(
            abs(report_of_step["learning_rate"] - rate) > 1e-12
            for report_of_step, rate in zip(reports, self.recipe.rates, strict=True)
        ):
            raise BenchFailed("the product's learning rates differ from the peers'")
        summary = json.loads((run_folder / "run_summary.json").read_text())
        start = next(event["payload"] for event in events if event["event"] == "train_start")
        # Peers write no checkpoint while they train; the cost of the product's is goal G5.
        step_ms, checkpoint_ms = step_and_checkpoint_ms(events)
        cpu = [report.get("cpu_seconds", math.nan) for report in reports]
        tokens = self.recipe.tokens(UNTIMED_STEPS)
        return TrainerOutcome(
            tokens_per_second=tokens / sum(step_ms) * 1e3,
            tokens_per_cpu_second=tokens / (cpu[-1] - cpu[UNTIMED_STEPS - 1]),
            losses=[report["loss"] for report in reports],
            grad_norms=[report["grad_norm"] for report in reports],
            peak_bytes=summary["memory"]["peak_bytes"],
            adapter=str(run_folder / "adapter"),
            facts={
                "memory": summary["memory"],
                "budget": start.get("budget", {}),
                "step_seconds": statistics.median(step_ms) / 1e3,
                "checkpoint_seconds": checkpoint_ms / 1e3,
            },
        )

    def train_peer(
        self,
        variant: str,
        run_name: str,
        module: str = "bench.training.train_variants",
        *,
        recompute: bool = False,
        steps: int | None = None,
    ) -> TrainerOutcome:
        """Train with a peer.

        Args:
            run_name: name of the run folder.
            module: module that runs the peer.
            recompute: recompute activations in the backward pass instead of storing them.
            steps: number of first steps to run; None: all.
        """
        run_folder = self.folder / run_name
        run_folder.mkdir()
        recipe = self.recipe if steps is None else self.recipe.first(steps)
        written = replace(recipe, checkpointing=recompute).write(run_folder / "recipe.json")
        output = self._run_peer(module, variant, str(written), str(run_folder))
        return TrainerOutcome(**json.loads(output.splitlines()[-1]))

    def evaluate(self, adapters: dict[str, str]) -> dict[str, float]:
        """Return the mean loss per supervised token of each adapter over training and held-out rows, all computed by
        the same code.
        """
        output = self._run_peer(
            "bench.training.train_variants", "evaluate", str(self.folder / "recipe.json"), json.dumps(adapters)
        )
        losses: dict[str, float] = json.loads(output.splitlines()[-1])
        return losses

    def _run_peer(self, module: str, *arguments: str) -> str:
        return self._processes.run(self.peers, module, *arguments, OMP_NUM_THREADS=self._threads)


def step_and_checkpoint_ms(events: list[dict[str, Any]]) -> tuple[list[float], float]:
    """Return the milliseconds of each timed step alone, and of all checkpoints with their validation, including the
    last step's.
    """
    steps, checkpoints, last = [], 0.0, 0
    for event in (record for record in events if record["event"] in {"step", "checkpoint"}):
        if event["event"] == "checkpoint":
            checkpoints += event["ts_ms"] - last
        elif event["payload"]["step"] > UNTIMED_STEPS:
            steps.append(event["ts_ms"] - last)
        last = event["ts_ms"]
    return steps, checkpoints


def largest_relative_difference(ours: list[float], theirs: list[float]) -> float:
    """Return the largest relative difference between two lists of equal length."""
    return max(abs(own / other - 1) for own, other in zip(ours, theirs, strict=True))

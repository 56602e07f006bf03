"""QLoRA on one GPU, compared with peers and with the device's limits (goals G1 to G5): ``python -m bench.gpu --size 8B``.

Needs no network: the base has a Qwen3's shapes and random weights, the data is a synthetic chat mix. Variants take
turns, each in a separate process: the product as it is; NF4 without the cache of dequantised weights, with it, and the
same weights in bf16 (G3); telemetry kept in memory (G5); `transformers.Trainer` with peft; TRL's settings; Unsloth,
which needs a GPU. Peak and copy rate for the roofline are measured in the same run. A variant that fails, out of memory
for example, stays in the table with its reason, and the exit code is 1. ``--device cpu --size tiny`` runs all variants
except Unsloth on a CPU; the figures mean nothing there.

``--acceptance STAGE`` instead runs one of the six acceptance stages for a new GPU, in at most nine minutes, and
``--acceptance list`` shows what each of them proves and needs. A stage takes the options ``--device`` and ``--smoke``;
`speed` and `kernels` also take ``--size``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench.acceptance.budget import SECONDS
from bench.acceptance.stages import STAGES, accept, print_stages
from bench.harness.command import BenchFailed, PeerMissing, bench_parser, parse_options, run_bench
from bench.harness.peers import peers_python
from bench.harness.processes import variant_processes
from bench.training.gpu_comparison import GPU_PEERS, PEERS, PRODUCT, GpuComparison
from bench.training.recipe import InputsRequest, Trainers
from bench.training.roofline import Roofline
from bench.training.shapes import SHAPES

MINIMUM_STEPS = 5
SMOKE = {"rounds": 1, "steps": 5, "batch_size": 2, "held_out_rows": 2, "seq_len": 128}
PRELOADED = ("trl.trainer.sft_trainer", "bitsandbytes", "datasets", "worker.train", "worker.pretrain")


def main() -> int:
    variants = [*PRODUCT, *PEERS, *GPU_PEERS]
    parser = bench_parser("bench.gpu", __doc__)
    parser.add_argument("--acceptance", choices=["list", *STAGES], metavar="STAGE", help=f"list, {', '.join(STAGES)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit of a stage")
    parser.add_argument("--size", choices=list(SHAPES), help="default: 1.7B, for --acceptance 8B")
    parser.add_argument("--steps", type=int, default=8, help=f"optimizer steps, at least {MINIMUM_STEPS}")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--variants", nargs="+", choices=variants, help="default: all that the device can run")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--grad-accum", type=int, help="micro-batches per step; default: 8, on a CPU 1")
    parser.add_argument("--batch-size", type=int, default=8, help="rows per micro-batch")
    parser.add_argument("--seq-len", type=int, help="2048, on a CPU 256")
    parser.add_argument(
        "--held-out-rows", type=int, default=4, help="held-out rows for the validation at the checkpoint"
    )
    options = parse_options(parser, SMOKE)
    if options.acceptance == "list":
        print_stages()
        return 0
    if options.acceptance:
        return run_bench(lambda: accept_stage(options))
    options.size = options.size or "1.7B"
    on_gpu = options.device == "cuda"
    options.steps = max(options.steps, MINIMUM_STEPS)
    options.grad_accum = options.grad_accum or (8 if on_gpu else 1)
    options.seq_len = options.seq_len or (2048 if on_gpu else 256)
    options.variants = options.variants or (variants if on_gpu else [*PRODUCT, *PEERS])
    return run_bench(lambda: compare(options))


def accept_stage(options: argparse.Namespace) -> bool:
    """Run a stage of the acceptance; return whether all of it was done and all goals are met.

    Raises:
        PeerMissing: torch cannot use a GPU.
        BenchFailed: goals would be judged on a CPU, or a part of a smoke run has failed.
    """
    check_device(options.device)
    if options.device == "cpu" and not options.smoke:
        raise BenchFailed("on a CPU, a stage requires --smoke")
    size = "tiny" if options.smoke else options.size or "8B"
    return accept(options.acceptance, options.device, size, smoke=options.smoke, seconds=options.seconds)


def compare(options: argparse.Namespace) -> bool:
    """Measure all variants and report; return whether all ran and all goals are met."""
    check_device(options.device)
    python = peers_python(*(name for name in GPU_PEERS if name in options.variants))
    request = InputsRequest(
        base=SHAPES[options.size],
        rows=options.batch_size * options.grad_accum * options.steps,
        held_out_rows=options.held_out_rows,
        execution={
            "grad_accum": options.grad_accum,
            "batch_size": options.batch_size,
            "seq_len": options.seq_len,
            "checkpoint_every": options.steps // 2 + 1,  # one, after the untimed steps
        },
        device=options.device,
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder,
        # CUDA does not survive a fork, and bitsandbytes starts it when it is imported.
        variant_processes(
            smoke=options.smoke and options.device == "cpu", python=python, preloaded=PRELOADED
        ) as processes,
    ):
        trainers = Trainers(processes, Path(folder), request, threads=1)
        probed = json.loads(trainers.run("bench.training.gpu_variants", "probe", options.device))
        bench = GpuComparison(trainers, options)
        outcomes = bench.measure()
        limit = Roofline(SHAPES[options.size], trainers.recipe, probed)
        return bench.report(outcomes, limit) and not bench.failures


def check_device(device: str) -> None:
    """Check that torch can use a device.

    Raises:
        PeerMissing: torch cannot use it.
    """
    if device == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        raise PeerMissing("no CUDA device that torch can use; `--device cpu --size tiny` runs the variants on a CPU.")


if __name__ == "__main__":
    sys.exit(main())

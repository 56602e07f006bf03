"""A modelled training step; no GPU is needed: ``python -m bench.roofline --model qwen3-8b --card h100``.

The trainer's own code runs one micro-batch forward and backward on tensors without memory, as it would on a GPU, and
every operation is counted: its bytes, its FLOPs and the live memory. An operation takes as long as its bytes or its
FLOPs need, whichever is longer, and at least one launch: a modelled figure, never a measurement. ``reserved`` is the
memory that torch's allocator would take for the tensors, simulated with a worker's settings and with the defaults.
Variants: the trainer as it is; with the activations of norms and MLPs recomputed, or of whole blocks; without Triton's
kernels; and, for models with linear attention, transformers' reference.
"""

from __future__ import annotations

import argparse
import sys

from bench.harness.command import bench_parser, parse_options, print_goal, run_bench
from bench.training.counted_model import MODELS
from bench.training.paper_step import CARDS, NOW, RECOMPUTED, REFERENCE, TORCH, count_step
from bench.training.step_counter import GROUPS, StepCounter

SMOKE = {"rows": 2, "tokens": 256}
SMOKE_MODELS = {"qwen3-8b": "qwen3-tiny", "qwen3.5-4b": "qwen3.5-tiny"}


def main() -> int:
    parser = bench_parser("bench.roofline", __doc__)
    parser.add_argument("--model", choices=list(MODELS), default="qwen3-8b")
    parser.add_argument("--card", choices=list(CARDS), default="h100")
    parser.add_argument("--rows", type=int, default=2, help="rows per micro-batch")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per row")
    options = parse_options(parser, SMOKE)
    if options.smoke:
        options.model = SMOKE_MODELS.get(options.model, options.model)
    return run_bench(lambda: report(options))


def report(options: argparse.Namespace) -> bool:
    """Count every variant and print tables and goals; return whether the goals are met."""
    is_hybrid = options.model.startswith("qwen3.5")
    names = [NOW, *RECOMPUTED, TORCH, *([REFERENCE] if is_hybrid else [])]
    config, card = MODELS[options.model], CARDS[options.card]
    counted = {name: count_step(config, card, options.rows, options.tokens, name) for name in names}
    print(f"{options.model} in NF4 on one {options.card}, {options.rows} rows of {options.tokens} tokens; modelled")
    print_groups(counted)
    print_totals(counted, options.rows * options.tokens)
    base, goal, target = (REFERENCE, "P2", 5.0) if is_hybrid else (TORCH, "P1", 1.3)
    ratio = counted[base].total.seconds / counted[NOW].total.seconds
    facts = {"model": options.model, "card": options.card, "of": base, "ratio": round(ratio, 2)}
    return print_goal(goal, target=target, met=ratio >= target, smoke=options.smoke, **facts)


def print_groups(counted: dict[str, StepCounter]) -> None:
    """Print the work of the unchanged trainer by group, and each variant's time."""
    print(f"{'group':<18}{'operations':>11}{'GB':>9}{'TFLOP':>8}", *(f"{f'{name}, ms':>22}" for name in counted))
    for group in GROUPS:
        work = counted[NOW].groups[group]
        times = (f"{counter.groups[group].seconds * 1e3:22.1f}" for counter in counted.values())
        print(f"{group:<18}{work.operations:11}{work.bytes / 1e9:9.1f}{work.flops / 1e12:8.1f}", *times)


def print_totals(counted: dict[str, StepCounter], tokens: int) -> None:
    """Print one line per variant."""
    print(
        f"{'variant':<18}{'operations':>11}{'ms':>9}{'tokens/s':>10}{'activations, GB':>17}{'reserved':>10}{'by default':>12}"
    )
    for name, counter in counted.items():
        total = counter.total
        speed = tokens / total.seconds
        print(
            f"{name:<18}{total.operations:11}{total.seconds * 1e3:9.1f}{speed:10.0f}{counter.peak / 1e9:17.2f}"
            f"{counter.expandable.reserved / 1e9:10.2f}{counter.segments.reserved / 1e9:12.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())

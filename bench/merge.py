"""Merging an adapter into its base (goal C4), compared with peft: ``python -m bench.merge``.

Makes a Qwen3 (or, with ``--family``, a Llama with a tied head) of random bfloat16 weights (1.4 GB in shards) and an
adapter of rank 16 on every linear layer except the head. Then the product's engine and peft merge them in turns (A B C
A B C …), each in a separate process; imports do not count.

    mens       the product's engine: tensor by tensor, float64 sums, the base's dtype
    peft-f32   the base in float32, merge_and_unload, stored in bfloat16: the reference for the product's result
    peft-bf16  the same in bfloat16, as in many scripts: less memory, but every step is rounded

The goal: 1.5 times the speed of the faster peft variant, values within one rounding of peft-f32's, and no more memory
than two of the largest tensors plus 128 MB. The comparison that follows each merge (its fidelity) is measured too: it
must not take more memory than it announces beforehand, and it does not hold a model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from bench.harness.command import BenchFailed, bench_parser, parse_options, print_goal, run_bench
from bench.harness.processes import Processes, variant_processes

VARIANTS = ("mens", "peft-f32", "peft-bf16")
FIDELITY = "fidelity"
"""Name of the comparison after the merge; it is not a variant of the merge."""
FAMILIES = ("qwen3", "llama-tied")
PRELOADED = ("bench.merging.merge_inputs", "bench.merging.merge_variants", "bench.merging.merge_agreement")
TARGET = 1.5
MEMORY_MARGIN = 128 << 20
SMOKE = {"rounds": 1, "hidden": 256, "layers": 2, "vocabulary": 2000}
Facts = dict[str, float]


def main() -> int:
    """Command line; return the exit code (`bench/harness/command.py`)."""
    parser = bench_parser("bench.merge", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--family", choices=FAMILIES, default="qwen3")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--vocabulary", type=int, default=32000)
    options = parse_options(parser, SMOKE)
    return run_bench(lambda: compare(options))


def compare(options: argparse.Namespace) -> bool:
    """Measure all variants and report; return whether the goal is met."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-merge-") as name,
        variant_processes(smoke=options.smoke, python=Path(sys.executable), preloaded=PRELOADED) as processes,
    ):
        folder = Path(name)
        shape = [options.family, *(str(number) for number in (options.hidden, options.layers, options.vocabulary))]
        made = run_module(processes, "bench.merging.merge_inputs", str(folder), *shape)
        print(f"base of {made['bytes'] / 1e9:.2f} GB, largest tensor {made['largest'] / 1e6:.0f} MB", flush=True)
        outcomes = measure(processes, folder, options.rounds)
        agreement = run_module(processes, "bench.merging.merge_agreement", str(folder))
        compared = run_module(processes, "bench.merging.merge_variants", FIDELITY, str(folder))
    bytes_and_bound = f"{compared['bytes'] / 1e6:.0f} MB of {made['fidelity_bound'] / 1e6:.0f} MB announced"
    print(f"fidelity  {compared['seconds']:9.2f} s, {bytes_and_bound}")
    return report(outcomes, made, agreement, compared["bytes"], smoke=options.smoke)


def measure(processes: Processes, folder: Path, rounds: int) -> dict[str, list[Facts]]:
    """Measure each variant, in turns; the last result of each is left in its folder."""
    outcomes: dict[str, list[Facts]] = {name: [] for name in VARIANTS}
    for number in range(rounds):
        for name, ones in outcomes.items():
            shutil.rmtree(folder / name, ignore_errors=True)
            ones.append(run_module(processes, "bench.merging.merge_variants", name, str(folder)))
            taken = f"{ones[-1]['seconds']:7.2f} s {ones[-1]['cpu_seconds']:7.2f} s of CPU"
            print(f"  round {number + 1} {name:<9} {taken}", flush=True)
    return outcomes


def run_module(processes: Processes, module: str, *arguments: str) -> Facts:
    """Return the output of a module of this bench, run in a separate process, because this process never imports torch."""
    output = processes.run(Path(sys.executable), module, *arguments)
    facts: Facts = json.loads(output.strip().splitlines()[-1])
    return facts


def report(
    outcomes: dict[str, list[Facts]],
    made: Facts,
    agreement: Facts,
    fidelity_bytes: float,
    *,
    smoke: bool,
) -> bool:
    """Print the table and the goal.

    Args:
        made: facts about the base.
        agreement: agreement of the product's values with those of peft in float32.

    Raises:
        BenchFailed: in a smoke run, the values differ by more than a rounding.
    """
    print("variant     seconds   lowest  highest  CPU seconds  memory MB")
    for name, ones in outcomes.items():
        seconds = [facts["seconds"] for facts in ones]
        wall = f"{statistics.median(seconds):9.2f} {min(seconds):8.2f} {max(seconds):8.2f}"
        print(
            f"{name:<9} {wall} {_median(ones, 'cpu_seconds'):12.2f} {max(facts['bytes'] for facts in ones) / 1e6:10.0f}"
        )
    largest, worst, bound = made["largest"], agreement["worst"], made["fidelity_bound"]
    if smoke and worst > 1:
        raise BenchFailed(f"product and peft differ by {worst} roundings")
    ratios, extra = {}, max(facts["bytes"] for facts in outcomes["mens"])
    for kind in ("seconds", "cpu_seconds"):
        ours = _median(outcomes["mens"], kind)
        ratios[kind] = min(_median(ones, kind) for name, ones in outcomes.items() if name != "mens") / ours
    return print_goal(
        "C4",
        target=TARGET,
        met=ratios["seconds"] >= TARGET
        and worst <= 1
        and extra <= 2 * largest + MEMORY_MARGIN
        and fidelity_bytes <= bound,
        smoke=smoke,
        ratio=round(ratios["seconds"], 2),
        cpu_time_ratio=round(ratios["cpu_seconds"], 2),
        extra_bytes=extra,
        largest_tensor_bytes=largest,
        identical=round(agreement["equal"], 6),
        largest_difference_in_roundings=worst,
        fidelity_bytes=int(fidelity_bytes),
        fidelity_bound_bytes=bound,
    )


def _median(ones: list[Facts], kind: str) -> float:
    return statistics.median(facts[kind] for facts in ones)


if __name__ == "__main__":
    sys.exit(main())

"""Merging an adapter into its base (goal C4), compared with peft: ``python -m bench.merge``.

Makes a Qwen3 (or, with ``--family``, a Llama with a tied head) of random bfloat16 weights (1.4 GB in shards) and an adapter of rank 16 on every linear layer but the head.
Then the product's engine and peft merge them in turns (A B C A B C …), each in a process of its own; imports do not count.

    mens       the engine: tensor by tensor, float64 sums, the base's dtype
    peft-f32   the base in float32, merge_and_unload, stored in bfloat16: the result that ours is compared with
    peft-bf16  the same in bfloat16, as many scripts have it: less memory, and each step rounded

The goal: half as long again as fast as the faster of peft's, values within one rounding of peft-f32's, and no more memory
than two of the largest tensors and 128 MB. The comparison that follows each merge (its fidelity) is measured too: it takes no more
memory than it announces before it begins, and holds no model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open

from bench.command import BenchFailed, bench_parser, parse_options, print_goal, run_bench
from bench.merge_variants import FAMILIES, FIDELITY, VARIANTS, make_adapter, make_base, model_config
from bench.processes import Processes, variant_processes
from worker.merging.fidelity import memory_needed

TARGET = 1.5
MEMORY_MARGIN = 128 << 20
SMOKE = {"rounds": 1, "hidden": 256, "layers": 2, "vocabulary": 2000}
CANCELLED = 1e-6
Facts = dict[str, float]


def main() -> int:
    """Command line; returns the exit code (`bench/command.py`)."""
    parser = bench_parser("bench.merge", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--family", choices=list(FAMILIES), default="qwen3")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--vocabulary", type=int, default=32000)
    options = parse_options(parser, SMOKE)
    return run_bench(lambda: compare(options))


def compare(options: argparse.Namespace) -> bool:
    """Measure all variants and report; returns whether the goal is met."""
    preloaded = ("torch", "transformers", "peft", "bench.merge_variants")
    with (
        tempfile.TemporaryDirectory(prefix="bench-merge-") as name,
        variant_processes(smoke=options.smoke, python=Path(sys.executable), preloaded=preloaded) as processes,
    ):
        folder = Path(name)
        config = model_config(options.family, options.hidden, options.layers, options.vocabulary)
        largest = make_base(folder / "base", config)
        make_adapter(folder / "adapter", config)
        size = sum(path.stat().st_size for path in (folder / "base").iterdir())
        print(f"base of {size / 1e9:.2f} GB, largest tensor {largest / 1e6:.0f} MB", flush=True)
        outcomes = measure(processes, folder, options.rounds)
        identical, worst = agreement(folder)
        compared = run_variant(processes, FIDELITY, folder)
        bound = memory_needed(folder / "base")
    print(
        f"fidelity  {compared['seconds']:9.2f} s, {compared['bytes'] / 1e6:.0f} MB of {bound / 1e6:.0f} MB that it announces"
    )
    return report(outcomes, largest, identical, worst, compared["bytes"], bound, smoke=options.smoke)


def measure(processes: Processes, folder: Path, rounds: int) -> dict[str, list[Facts]]:
    """What each variant took, in turns; the last result of each is left in its folder."""
    outcomes: dict[str, list[Facts]] = {name: [] for name in VARIANTS}
    for number in range(rounds):
        for name, ones in outcomes.items():
            shutil.rmtree(folder / name, ignore_errors=True)
            ones.append(run_variant(processes, name, folder))
            taken = f"{ones[-1]['seconds']:7.2f} s {ones[-1]['cpu_seconds']:7.2f} s of CPU"
            print(f"  round {number + 1} {name:<9} {taken}", flush=True)
    return outcomes


def run_variant(processes: Processes, name: str, folder: Path) -> Facts:
    """What one variant took."""
    output = processes.run(Path(sys.executable), "bench.merge_variants", name, str(folder))
    facts: Facts = json.loads(output.strip().splitlines()[-1])
    return facts


def agreement(folder: Path) -> tuple[float, int]:
    """How far our values are from those of peft in float32.

    Where base and adapter nearly cancel out, float32 has the rounding errors of the larger terms: differences below a
    millionth of the tensor's mean size are no difference.

    Returns:
        The share of the values that are equal, and how many steps of bfloat16 the others are apart at most.

    Raises:
        BenchFailed: the two models have other tensors.
    """
    found, expected, base = (_locate(folder / name) for name in ("mens", "peft-f32", "base"))
    if found.keys() != expected.keys():
        raise BenchFailed(f"the merged models differ in {sorted(found.keys() ^ expected.keys())[:5]}")
    equal = count = worst = 0
    for name in found:
        ours, theirs, weight = (_tensor(located, name) for located in (found, expected, base))
        steps = (_ordinal(ours) - _ordinal(theirs)).abs()
        equal, count = equal + int((steps == 0).sum()), count + steps.numel()
        steps[(ours.float() - theirs.float()).abs() <= CANCELLED * weight.float().abs().mean()] = 0
        worst = max(worst, int(steps.max()))
    return equal / count, worst


def _locate(folder: Path) -> dict[str, Path]:
    located: dict[str, Path] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as shard:
            located |= dict.fromkeys(shard.keys(), path)
    return located


def _tensor(located: dict[str, Path], name: str) -> torch.Tensor:
    with safe_open(located[name], "pt") as shard:
        tensor: torch.Tensor = shard.get_tensor(name)
    return tensor


def _ordinal(values: torch.Tensor) -> torch.Tensor:
    """Number of a bfloat16 among all, in order of size: neighbours differ by one."""
    bits = values.view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -32768 - bits, bits)


def report(
    outcomes: dict[str, list[Facts]],
    largest: int,
    identical: float,
    worst: int,
    fidelity_bytes: float,
    fidelity_bound: int,
    *,
    smoke: bool,
) -> bool:
    """Print the table and the goal.

    Raises:
        BenchFailed: in a smoke run, the values are further apart than a rounding.
    """
    print("variant     seconds   lowest  highest  CPU seconds  memory MB")
    for name, ones in outcomes.items():
        seconds = [one["seconds"] for one in ones]
        wall = f"{statistics.median(seconds):9.2f} {min(seconds):8.2f} {max(seconds):8.2f}"
        print(f"{name:<9} {wall} {_median(ones, 'cpu_seconds'):12.2f} {max(one['bytes'] for one in ones) / 1e6:10.0f}")
    if smoke and worst > 1:
        raise BenchFailed(f"product and peft differ by {worst} roundings")
    ratios, extra = {}, max(one["bytes"] for one in outcomes["mens"])
    for kind in ("seconds", "cpu_seconds"):
        ours = _median(outcomes["mens"], kind)
        ratios[kind] = min(_median(ones, kind) for name, ones in outcomes.items() if name != "mens") / ours
    return print_goal(
        "C4",
        target=TARGET,
        met=ratios["seconds"] >= TARGET
        and worst <= 1
        and extra <= 2 * largest + MEMORY_MARGIN
        and fidelity_bytes <= fidelity_bound,
        smoke=smoke,
        ratio=round(ratios["seconds"], 2),
        cpu_time_ratio=round(ratios["cpu_seconds"], 2),
        extra_bytes=extra,
        largest_tensor_bytes=largest,
        identical=round(identical, 6),
        largest_difference_in_roundings=worst,
        fidelity_bytes=int(fidelity_bytes),
        fidelity_bound_bytes=fidelity_bound,
    )


def _median(ones: list[Facts], kind: str) -> float:
    return statistics.median(one[kind] for one in ones)


if __name__ == "__main__":
    sys.exit(main())

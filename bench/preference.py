"""A DPO step of the product and of TRL (goal D1), and the pass that scores the reference (D2): ``python -m
bench.preference [--base smollm2]``.

The product and TRL's DPOTrainer at its best setting, both with stored scores of the reference, train the same adapter
on the same encoded pairs in the same order, in float32, each in a separate process. The first two steps are not
counted. D2 compares the product's pass for the reference's scores with a plain forward pass of transformers over the
same chats. All are measured by CPU time. The last lines are JSON, one line per goal.

TRL's settings (all pairs per step at once, or one at a time) are tried on the first steps; the faster one takes part.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.harness.command import BenchFailed, bench_parser, parse_options, print_goal, run_bench
from bench.harness.peers import peers_python
from bench.harness.processes import Processes, variant_processes
from bench.harness.smollm2 import SMOLLM2, smollm2_folder
from bench.training.recipe import UNTIMED_STEPS, InputsRequest
from bench.training.shapes import Shape

TINY = "tiny"
SPEED, MEMORY, LOSS, REFERENCE = 2.0, 0.7, 1e-5, 1.1
TRL_SETTINGS = ("batch", "single")
SMOKE = {"steps": 3, "hidden": 64, "vocabulary": 1024, "seq_len": 256, "pairs": 2, "pretraining_steps": 2}
REAL = {"steps": 20, "pairs": 4, "seq_len": 512}
REAL_SMOKE = {"steps": 3, "pairs": 1, "seq_len": 96, "trl_settings": ("single",)}
PRELOADED = ("trl", "datasets", "worker.train", "worker.pretrain")


def main() -> int:
    parser = bench_parser("bench.preference", __doc__)
    parser.add_argument(
        "--base", choices=(TINY, SMOLLM2), default=TINY, help="base to train; the real base uses different sizes"
    )
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    parser.add_argument("--pairs", type=int, default=8, help="pairs per step")
    parser.add_argument("--pretraining-steps", type=int, default=40, help="pretraining steps of the tiny base")
    parser.add_argument(
        "--hidden", type=int, default=128, help="width of the tiny base; the rest of its shape follows from it"
    )
    parser.add_argument("--vocabulary", type=int, default=4096, help="maximum tokens of the tiny base")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trl-settings", nargs="+", default=TRL_SETTINGS, choices=TRL_SETTINGS)
    parser.add_argument(
        "--tried-steps",
        type=int,
        default=3,
        help="steps with which each of TRL's settings is tried before the comparison",
    )
    real = parser.parse_args().base == SMOLLM2
    parser.set_defaults(**(REAL if real else {}))
    options = parse_options(parser, REAL_SMOKE if real else SMOKE)
    return run_bench(lambda: compare(options))


def compare(options: argparse.Namespace) -> bool:
    """Measure the product, TRL and the plain forward pass, and report; return whether all goals are met."""
    request = InputsRequest(
        base=Shape.of_width(options.hidden, options.vocabulary) if options.base == TINY else str(smollm2_folder()),
        rows=options.steps * options.pairs,
        held_out_rows=0,
        execution={"seq_len": options.seq_len, "batch_size": options.pairs},
        quant="none",
        pretraining_steps=options.pretraining_steps,
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-preference-") as name,
        variant_processes(smoke=options.smoke, python=peers_python(), preloaded=PRELOADED) as processes,
    ):
        folder, threads = Path(name), str(options.threads)
        environment = {"OMP_NUM_THREADS": threads}
        made = ("bench.training.pair_inputs", json.dumps(asdict(request)), str(folder))
        processes.run(Path(sys.executable), *made, **environment)
        recipe = json.loads((folder / "pairs.json").read_text())
        tokens = tokens_of(recipe)
        print(f"{options.base}, {threads} thread(s); {len(recipe['pairs'])} pairs, {tokens} tokens", flush=True)
        setting = fastest_trl(processes, folder, options, environment)
        ours = train(processes, folder, environment)
        theirs = peer(processes, folder, f"trl-{setting}", "trl", environment)
        bare = json.loads(
            processes.run(
                peers_python(), "bench.training.pair_variants", "forward", str(folder / "pairs.json"), **environment
            ).splitlines()[-1]
        )
        return report(ours, theirs, bare["cpu_seconds"], recipe, options)


def tokens_of(recipe: dict[str, Any], first_step: int = 0) -> int:
    """Return the tokens of both chats of the pairs from a 0-based step on, without padding."""
    pairs = recipe["pairs"][first_step * recipe["pairs_per_step"] :]
    return sum(2 * len(pair["prompt_ids"]) + len(pair["chosen_ids"]) + len(pair["rejected_ids"]) for pair in pairs)


def train(processes: Processes, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Train with the product; return the same measurements as for a peer."""
    run_folder = folder / "mens"
    run_folder.mkdir()
    shutil.copy(folder / "plan.json", run_folder)
    arguments = (str(run_folder / "plan.json"), str(run_folder))
    processes.run(Path(sys.executable), "bench.training.timed_pairs", *arguments, **environment)
    events = [json.loads(line) for line in (run_folder / "telemetry.jsonl").read_text().splitlines()]
    steps = [event["payload"] for event in events if event["event"] == "step"]
    summary = json.loads((run_folder / "run_summary.json").read_text())
    return {
        "cpu_seconds": steps[-1]["cpu_seconds"] - steps[UNTIMED_STEPS - 1]["cpu_seconds"],
        "reference_cpu_seconds": json.loads((run_folder / "reference.json").read_text())["cpu_seconds"],
        "losses": [step["preference_loss"] for step in steps],
        "peak_bytes": summary["memory"]["peak_bytes"],
    }


def peer(
    processes: Processes, folder: Path, variant: str, run_name: str, environment: dict[str, str], *more: str
) -> dict[str, Any]:
    """Train with TRL, and return its measurements."""
    run_folder = folder / run_name
    run_folder.mkdir()
    arguments = (variant, str(folder / "pairs.json"), str(run_folder), *more)
    output = processes.run(peers_python(), "bench.training.pair_variants", *arguments, **environment)
    measured: dict[str, Any] = json.loads(output.splitlines()[-1])
    return measured


def fastest_trl(processes: Processes, folder: Path, options: argparse.Namespace, environment: dict[str, str]) -> str:
    """Return TRL's faster setting on this machine, found by running each over the first steps."""
    settings = options.trl_settings
    if len(settings) == 1:
        return str(settings[0])
    steps = str(min(options.steps, UNTIMED_STEPS + options.tried_steps))
    seconds = {
        name: peer(processes, folder, f"trl-{name}", f"try-{name}", environment, steps)["cpu_seconds"]
        for name in settings
    }
    best: str = min(seconds, key=lambda name: seconds[name])
    listed = ", ".join(f"{name} {second:.1f}" for name, second in seconds.items())
    print(f"TRL, CPU seconds of the first steps: {listed}; {best} takes part", flush=True)
    return best


def report(
    ours: dict[str, Any], theirs: dict[str, Any], bare: float, recipe: dict[str, Any], options: argparse.Namespace
) -> bool:
    """Print the table and the goals.

    Returns:
        whether all goals are met.

    Raises:
        BenchFailed: in a smoke run, product and TRL have learned different things.
    """
    tokens, smoke = tokens_of(recipe, UNTIMED_STEPS), options.smoke
    print("variant  tokens/CPU s   reference, CPU s   peak MB")
    for name, figures in (("mens", ours), ("trl", theirs)):
        speed, reference = tokens / figures["cpu_seconds"], figures["reference_cpu_seconds"]
        print(f"{name:<8} {speed:12.0f} {reference:18.1f} {figures['peak_bytes'] / 1e6:9.0f}")
    print(f"forward  {tokens_of(recipe) / bare:12.0f} {bare:18.1f}")
    difference = max(abs(figures - other) for figures, other in zip(ours["losses"], theirs["losses"], strict=True))
    if smoke and difference > LOSS:
        raise BenchFailed(f"product and TRL differ: {ours['losses']}, {theirs['losses']}")
    suffix = "" if options.base == TINY else "-real"
    speed = theirs["cpu_seconds"] / ours["cpu_seconds"]
    met = [
        print_goal(
            f"D1{suffix}",
            target=SPEED,
            met=speed >= SPEED and difference <= LOSS,
            smoke=smoke,
            ratio=round(speed, 2),
            largest_step_loss_difference=difference,
        )
    ]
    memory = ours["peak_bytes"] / theirs["peak_bytes"]
    if options.base != TINY:  # the libraries alone hold most of a tiny base's memory
        met.append(
            print_goal(f"D1{suffix}-memory", target=MEMORY, met=memory <= MEMORY, smoke=smoke, ratio=round(memory, 2))
        )
    reference = ours["reference_cpu_seconds"] / bare
    of_trl = ours["reference_cpu_seconds"] / theirs["reference_cpu_seconds"]
    facts = {"ratio": round(reference, 2), "ratio_to_trl": round(of_trl, 2)}
    met.append(print_goal(f"D2{suffix}", target=REFERENCE, met=reference <= REFERENCE, smoke=smoke, **facts))
    return all(met)


if __name__ == "__main__":
    sys.exit(main())

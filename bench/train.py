"""A QLoRA training step of the product and of its peers (goal C1): ``python -m bench.train``.

Makes a tiny Qwen3 chat base and a realistic chat mix, then lets the product, `transformers.Trainer` with peft, and TRL's
SFTTrainer at its best setting train the same adapter on it, in turns (A B C A B C …), each in a process of its own, and
compares medians of useful (non-padding) tokens per second. Base, NF4 with double quantisation, rows, steps, rates and
the initial adapter are the same; the first two steps are not counted. Afterwards one program computes every adapter's
mean loss over the same rows. The last lines are JSON, one a goal.

TRL's settings are tried once each before the rounds; the fastest takes part in them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from bench.command import BenchFailed, bench_parser, parse_options, print_goal, run_bench
from bench.peers import peers_python
from bench.processes import variant_processes
from bench.recipe import InputsRequest, Outcome, Trainers, largest_relative_difference
from bench.shapes import Shape

GOALS = (("C1", "hf", 4.0), ("C1-trl", "trl", 1.0))
LOSS_TOLERANCE = 1e-3
TRL_SETTINGS = ("packed", "packed-large", "padding-free", "single", "grouped")
TRIED_SETTINGS = ("packed", "padding-free", "single", "grouped")
SMOKE = {
    "rounds": 1,
    "steps": 3,
    "hidden": 64,
    "vocabulary": 1024,
    "seq_len": 256,
    "batch_size": 2,
    "held_out_rows": 2,
    "pretraining_steps": 2,
    "trl_settings": TRL_SETTINGS,
}
PRELOADED = ("trl.trainer.sft_trainer", "bitsandbytes", "datasets", "worker.train", "worker.pretrain")


def main() -> int:
    parser = bench_parser("bench.train", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps of two micro-batches")
    parser.add_argument("--batch-size", type=int, default=8, help="rows of a micro-batch")
    parser.add_argument("--held-out-rows", type=int, default=40, help="for the comparison of losses")
    parser.add_argument("--pretraining-steps", type=int, default=40, help="of the base")
    parser.add_argument("--hidden", type=int, default=128, help="width of the base; the rest of its shape follows")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens at most")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trl-settings", nargs="+", default=TRIED_SETTINGS, choices=TRL_SETTINGS)
    options = parse_options(parser, SMOKE)
    return run_bench(lambda: compare(options))


def compare(options: argparse.Namespace) -> bool:
    """Measure all variants and report; returns whether all goals are met."""
    request = InputsRequest(
        shape=Shape.of_width(options.hidden, options.vocabulary),
        rows=2 * options.batch_size * options.steps,
        held_out_rows=options.held_out_rows,
        execution={"seq_len": options.seq_len, "batch_size": options.batch_size},
        pretraining_steps=options.pretraining_steps,
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-train-") as folder,
        variant_processes(smoke=options.smoke, python=peers_python(), preloaded=PRELOADED) as processes,
    ):
        trainers = Trainers(processes, Path(folder), request, options.threads)
        recipe = trainers.recipe
        lengths = sorted(len(row["input_ids"]) for row in recipe.rows)
        supervised = sum(recipe.targets(step) for step in range(options.steps)) / recipe.tokens()
        print(f"h {options.hidden}, {options.threads} thread(s); {request.rows} rows", end=" ")
        print(f"of mean {recipe.tokens() / request.rows:.0f}, median {lengths[request.rows // 2]},", end=" ")
        print(f"longest {lengths[-1]} tokens; {supervised:.0%} supervised", flush=True)
        outcomes = measure(trainers, options.rounds, options.trl_settings)
        losses = trainers.evaluate({name: ones[0].adapter for name, ones in outcomes.items()})
        return report(outcomes, losses, smoke=options.smoke)


def measure(trainers: Trainers, rounds: int, trl_settings: list[str]) -> dict[str, list[Outcome]]:
    """Outcomes of all variants, run in turns; which setting of TRL is the fastest is found first."""
    trl = f"trl-{fastest_trl(trainers, trl_settings)}"
    outcomes: dict[str, list[Outcome]] = {"mens": [], "hf": [], "trl": []}
    for number in range(rounds):
        for name, ones in outcomes.items():
            run_name = f"{name}-{number}"
            if name == "mens":
                ones.append(trainers.train(run_name))
            else:
                ones.append(trainers.train_peer(trl if name == "trl" else name, run_name))
            speeds = f"{ones[-1].tokens_per_second:8.0f} tokens/s {ones[-1].tokens_per_cpu_second:8.0f} by CPU time"
            print(f"  round {number + 1} {name:<5} {speeds}", flush=True)
    return outcomes


def fastest_trl(trainers: Trainers, settings: list[str]) -> str:
    """TRL's best setting on this machine, by one run of each."""
    if len(settings) == 1:
        return settings[0]
    # One run decides, so by CPU time: wall time depends on what else the machine does at that moment.
    speeds = {name: trainers.train_peer(f"trl-{name}", f"try-{name}").tokens_per_cpu_second for name in settings}
    best = max(speeds, key=lambda name: speeds[name])
    listed = ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items())
    print(f"TRL, tokens per CPU second: {listed}; {best} takes part", flush=True)
    return best


def report(outcomes: dict[str, list[Outcome]], losses: dict[str, float], *, smoke: bool) -> bool:
    """Print the table and the goals.

    Returns:
        Whether all goals are met.

    Raises:
        BenchFailed: in a smoke run, the product and `transformers.Trainer` have learnt something else.
    """
    medians = {name: statistics.median(one.tokens_per_second for one in ones) for name, ones in outcomes.items()}
    cpu = {name: statistics.median(one.tokens_per_cpu_second for one in ones) for name, ones in outcomes.items()}
    print("variant tokens/s   lowest  highest   by CPU   peak MB   mean loss")
    for name, ones in outcomes.items():
        speeds, peak = [one.tokens_per_second for one in ones], max(one.peak_bytes for one in ones) / 1e6
        wall = f"{medians[name]:10.0f} {min(speeds):8.0f} {max(speeds):8.0f}"
        print(f"{name:<5} {wall} {cpu[name]:8.0f} {peak:9.0f}   {losses[name]:.6f}")
    ours, theirs = outcomes["mens"][0], outcomes["hf"][0]
    differences = {
        "loss_relative_difference": abs(losses["mens"] / losses["hf"] - 1),
        "largest_step_loss_difference": largest_relative_difference(ours.losses, theirs.losses),
        "first_gradient_norm_difference": largest_relative_difference(ours.grad_norms[:1], theirs.grad_norms[:1]),
    }
    if smoke and max(differences.values()) > LOSS_TOLERANCE:
        raise BenchFailed(f"product and transformers.Trainer differ: {differences}")
    met = []
    for goal, peer, target in GOALS:
        ratio = medians["mens"] / medians[peer]
        close = goal != "C1" or differences["loss_relative_difference"] <= LOSS_TOLERANCE
        facts = {"ratio": round(ratio, 2), "cpu_time_ratio": round(cpu["mens"] / cpu[peer], 2)}
        facts |= differences if goal == "C1" else {}
        met.append(print_goal(goal, target=target, met=ratio >= target and close, smoke=smoke, **facts))
    return all(met)


if __name__ == "__main__":
    sys.exit(main())

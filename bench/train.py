"""A training step of the product and of its peers (goal C1): ``python -m bench.train [--base smollm2] [--quant none]``.

Makes a tiny Qwen3 chat base, or takes SmolLM2-135M-Instruct, and a realistic chat mix, then lets the product,
`transformers.Trainer` with peft, and TRL's SFTTrainer at its best setting train the same adapter on it, in turns (A B C
A B C …), each in a separate process, and compares medians of useful (non-padding) tokens per second. Base and its
precision (NF4 with double quantisation, or float32), rows, steps, rates and the initial adapter are the same; the first
two steps are not counted. Afterwards one program computes every adapter's mean loss over the same rows. The last lines
are JSON, one line per goal. With the tiny base, wall time decides; with the real one, whose rounds take minutes, CPU
time decides, because it is disturbed less.

Before the rounds, each of TRL's settings is tried once on the first steps; the fastest takes part in the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.harness.command import BenchFailed, bench_parser, parse_options, print_goal, run_bench
from bench.harness.peers import peers_python
from bench.harness.processes import variant_processes
from bench.harness.smollm2 import SMOLLM2, smollm2_folder
from bench.training.recipe import InputsRequest, TrainerOutcome, Trainers, largest_relative_difference
from bench.training.shapes import Shape


@dataclass(frozen=True)
class Goals:
    """The goals on one base.

    Attributes:
        name: name of the goals with the base in ``quant``.
        hf, trl: minimum ratio of the product's speed to theirs.
        loss: largest relative difference to `transformers.Trainer`.
        memory: largest ratio of the product's peak memory to that of `transformers.Trainer`; None: not judged.
        by_cpu_time: whether speeds are measured by CPU time.
    """

    name: str
    quant: str
    hf: float
    trl: float
    loss: float
    memory: float | None = None
    by_cpu_time: bool = False

    def named(self, quant: str) -> str:
        """Return the name of the goals with the base in ``quant``."""
        return self.name if quant == self.quant else f"{self.name}-{quant}"


TINY = "tiny"
GOALS = {
    TINY: Goals("C1", "nf4", hf=4.0, trl=1.0, loss=1e-3),
    SMOLLM2: Goals("C1-real", "none", hf=2.0, trl=1.2, loss=1e-4, memory=0.7, by_cpu_time=True),
}
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
REAL = {"rounds": 1, "steps": 20, "batch_size": 4, "grad_accum": 1, "held_out_rows": 4, "seq_len": 1024}
"""Options for the real base. `transformers.Trainer` keeps the activations and scores of its padded rows, so few rows
fit into memory.
"""
REAL_SMOKE = {"rounds": 1, "steps": 3, "batch_size": 2, "held_out_rows": 1, "seq_len": 64, "trl_settings": ("single",)}
PRELOADED = ("trl.trainer.sft_trainer", "bitsandbytes", "datasets", "worker.train", "worker.pretrain")


def main() -> int:
    parser = bench_parser("bench.train", __doc__)
    parser.add_argument("--base", choices=GOALS, default=TINY, help="base to train; the real base uses different sizes")
    parser.add_argument(
        "--quant",
        choices=("nf4", "none"),
        help="quantisation of the base; default: nf4 for the tiny base, none for the real base",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    parser.add_argument("--batch-size", type=int, default=8, help="rows per micro-batch")
    parser.add_argument("--grad-accum", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--held-out-rows", type=int, default=40, help="held-out rows for the comparison of losses")
    parser.add_argument("--pretraining-steps", type=int, default=40, help="pretraining steps of the tiny base")
    parser.add_argument(
        "--hidden", type=int, default=128, help="width of the tiny base; the rest of its shape follows from it"
    )
    parser.add_argument("--vocabulary", type=int, default=4096, help="maximum tokens of the tiny base")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trl-settings", nargs="+", default=TRIED_SETTINGS, choices=TRL_SETTINGS)
    parser.add_argument(
        "--tried-steps", type=int, default=5, help="steps with which each of TRL's settings is tried before the rounds"
    )
    real = parser.parse_args().base == SMOLLM2
    parser.set_defaults(**(REAL if real else {}))
    options = parse_options(parser, REAL_SMOKE if real else SMOKE)
    options.quant = options.quant or GOALS[options.base].quant
    return run_bench(lambda: compare(options))


def compare(options: argparse.Namespace) -> bool:
    """Measure all variants and report; return whether all goals are met."""
    request = InputsRequest(
        base=Shape.of_width(options.hidden, options.vocabulary) if options.base == TINY else str(smollm2_folder()),
        rows=options.grad_accum * options.batch_size * options.steps,
        held_out_rows=options.held_out_rows,
        execution={name: getattr(options, name) for name in ("seq_len", "batch_size", "grad_accum")},
        quant=options.quant,
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
        base = f"h {options.hidden}" if options.base == TINY else options.base
        print(f"{base}, {options.quant}, {options.threads} thread(s); {request.rows} rows", end=" ")
        print(f"of mean {recipe.tokens() / request.rows:.0f}, median {lengths[request.rows // 2]},", end=" ")
        print(f"longest {lengths[-1]} tokens; {supervised:.0%} supervised", flush=True)
        outcomes = measure(trainers, options)
        losses = trainers.evaluate({name: ones[0].adapter for name, ones in outcomes.items()})
        return report(outcomes, losses, options)


def measure(trainers: Trainers, options: argparse.Namespace) -> dict[str, list[TrainerOutcome]]:
    """Return outcomes of all variants, run in turns; the fastest TRL setting is found first."""
    trl = f"trl-{fastest_trl(trainers, options.trl_settings, options.tried_steps)}"
    outcomes: dict[str, list[TrainerOutcome]] = {"mens": [], "hf": [], "trl": []}
    for number in range(options.rounds):
        for name, ones in outcomes.items():
            run_name = f"{name}-{number}"
            if name == "mens":
                ones.append(trainers.train(run_name))
            else:
                ones.append(trainers.train_peer(trl if name == "trl" else name, run_name))
            speeds = f"{ones[-1].tokens_per_second:8.0f} tokens/s {ones[-1].tokens_per_cpu_second:8.0f} by CPU time"
            print(f"  round {number + 1} {name:<5} {speeds}", flush=True)
    return outcomes


def fastest_trl(trainers: Trainers, settings: list[str], steps: int) -> str:
    """Return TRL's fastest setting on this machine, found by running each over the first steps."""
    if len(settings) == 1:
        return settings[0]
    # A single run decides, so CPU time is used: wall time depends on the machine's other load at that moment.
    speeds = {
        name: trainers.train_peer(f"trl-{name}", f"try-{name}", steps=steps).tokens_per_cpu_second for name in settings
    }
    best = max(speeds, key=lambda name: speeds[name])
    listed = ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items())
    print(f"TRL, tokens per CPU second: {listed}; {best} takes part", flush=True)
    return best


def report(outcomes: dict[str, list[TrainerOutcome]], losses: dict[str, float], options: argparse.Namespace) -> bool:
    """Print the table and the goals.

    Returns:
        whether all goals are met.

    Raises:
        BenchFailed: in a smoke run, the product and `transformers.Trainer` have learned different things.
    """
    goals, smoke = GOALS[options.base], options.smoke
    medians = {
        name: statistics.median(outcome.tokens_per_second for outcome in ones) for name, ones in outcomes.items()
    }
    cpu = {
        name: statistics.median(outcome.tokens_per_cpu_second for outcome in ones) for name, ones in outcomes.items()
    }
    peaks = {name: max(outcome.peak_bytes for outcome in ones) for name, ones in outcomes.items()}
    print("variant tokens/s   lowest  highest   by CPU   peak MB   mean loss")
    for name, ones in outcomes.items():
        speeds = [outcome.tokens_per_second for outcome in ones]
        by_wall = f"{medians[name]:10.0f} {min(speeds):8.0f} {max(speeds):8.0f}"
        print(f"{name:<5} {by_wall} {cpu[name]:8.0f} {peaks[name] / 1e6:9.0f}   {losses[name]:.6f}")
    ours, theirs = outcomes["mens"][0], outcomes["hf"][0]
    differences = {
        "loss_relative_difference": abs(losses["mens"] / losses["hf"] - 1),
        "largest_step_loss_difference": largest_relative_difference(ours.losses, theirs.losses),
        "first_gradient_norm_difference": largest_relative_difference(ours.grad_norms[:1], theirs.grad_norms[:1]),
    }
    largest = max(differences.values())
    if smoke and largest > goals.loss:
        raise BenchFailed(f"product and transformers.Trainer differ: {differences}")
    name, met = goals.named(options.quant), []
    for goal, peer, target in ((name, "hf", goals.hf), (f"{name}-trl", "trl", goals.trl)):
        wall, by_cpu = medians["mens"] / medians[peer], cpu["mens"] / cpu[peer]
        ratio = by_cpu if goals.by_cpu_time else wall
        facts = {"ratio": round(ratio, 2), "wall_time_ratio": round(wall, 2), "cpu_time_ratio": round(by_cpu, 2)}
        facts |= differences if peer == "hf" else {}
        close = peer != "hf" or largest <= goals.loss
        met.append(print_goal(goal, target=target, met=ratio >= target and close, smoke=smoke, **facts))
    if goals.memory is not None:
        memory = {f"ratio_to_{peer}": round(peaks["mens"] / peaks[peer], 2) for peer in ("hf", "trl")}
        met.append(
            print_goal(
                f"{name}-memory", target=goals.memory, met=memory["ratio_to_hf"] <= goals.memory, smoke=smoke, **memory
            )
        )
    return all(met)


if __name__ == "__main__":
    sys.exit(main())

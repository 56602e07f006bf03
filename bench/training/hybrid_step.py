"""A micro-batch of Qwen3.5's tiny base on a CPU, forward and backward, by the trainer's linear attention and by transformers'
reference: ``python -m bench.training.hybrid_step``.

The figure is the CPU time of one thread, the smallest of several alternating rounds. The reference pads rows, because
it cannot keep packed ones apart. Goal: at least twice as fast at rows of 1,024 tokens.
"""

from __future__ import annotations

import time

import torch
from peft import PeftModel

from bench.harness.command import bench_parser, parse_options, print_goal
from bench.training.counted_model import TINY_QWEN3_5, counted_model, micro_batch
from worker.training.data.batches import MicroBatch
from worker.training.supervised import SupervisedMethod

CPU = torch.device("cpu")
LEAST_SPEEDUP = 2.0
ROWS, TOKENS = 2, 1024


def seconds_of_both(tokens: int = TOKENS, rounds: int = 3) -> tuple[float, float]:
    """Return the CPU seconds of a micro-batch with the trainer's functions and with the reference.

    Args:
        tokens: number of tokens of each of the two rows.
    """
    torch.set_num_threads(1)
    models = [counted_model(TINY_QWEN3_5, device=CPU, own_scan=own_scan) for own_scan in (True, False)]
    batches = [micro_batch(ROWS, tokens, packed=packed) for packed in (True, False)]
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for model, batch, taken in zip(models, batches, times, strict=True):
            taken.append(_seconds(model, batch))
    own, reference = map(min, times)
    return own, reference


def _seconds(model: PeftModel, batch: MicroBatch) -> float:
    began = time.process_time()
    SupervisedMethod().loss(model, batch, CPU, 100.0).loss.backward()
    return time.process_time() - began


def main() -> int:
    parser = bench_parser("bench.training.hybrid_step", __doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, TOKENS, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    options = parse_options(parser, {"tokens": [TOKENS], "rounds": 1})
    print("| tokens of a row | trainer | transformers' reference | times as fast |\n|---|---|---|---|")
    goals = []
    for tokens in options.tokens:
        own, reference = seconds_of_both(tokens, options.rounds)
        print(f"| {tokens:,} | {own:.2f} s | {reference:.2f} s | {reference / own:.1f} |", flush=True)
        if tokens >= TOKENS:
            goals.append({"tokens": tokens, "seconds": own, "reference_seconds": reference, "ratio": reference / own})
    return 0 if print_goals(goals, smoke=options.smoke) else 1


def print_goals(goals: list[dict[str, float]], *, smoke: bool = False) -> bool:
    """Print the line of each length that has the goal; return whether all meet it."""
    verdicts = [
        print_goal(
            "H1",
            **{name: round(value, 2) for name, value in facts.items()},
            target=LEAST_SPEEDUP,
            met=facts["ratio"] >= LEAST_SPEEDUP,
            smoke=smoke,
        )
        for facts in goals
    ]
    return all(verdicts)


if __name__ == "__main__":
    raise SystemExit(main())

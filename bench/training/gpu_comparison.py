"""The variants of ``bench/gpu.py``: how each of them runs, and how goals G1 to G5 are judged."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from bench.harness.command import BenchFailed, print_goal
from bench.harness.processes import VariantFailed
from bench.training.recipe import TrainerOutcome, Trainers, largest_relative_difference
from bench.training.roofline import Roofline

PRODUCT = ("mens", "mens-nf4", "mens-cache", "mens-bf16", "mens-quiet")
PEERS = ("hf", "trl-packed", "trl-packed-large", "trl-padding-free")
GPU_PEERS = ("unsloth",)
USUAL_STEPS_BETWEEN_CHECKPOINTS = 500
LOSS_TOLERANCE = 1e-3


class GpuComparison:
    """The variants of one comparison.

    Args:
        trainers: the trainers that run them.
        options: options of the command line.

    Attributes:
        failures: reasons of the variants that failed.
    """

    def __init__(self, trainers: Trainers, options: argparse.Namespace) -> None:
        self._trainers, self._options = trainers, options
        self._recomputing: set[str] = set()
        self.failures: dict[str, str] = {}

    def measure(self) -> dict[str, list[TrainerOutcome]]:
        """Return outcomes of the variants, run in turns; a failed variant takes no further part.

        Raises:
            VariantFailed: in a smoke run, a variant has failed.
        """
        outcomes: dict[str, list[TrainerOutcome]] = {}
        for number in range(self._options.rounds):
            for variant in [name for name in self._options.variants if name not in self.failures]:
                try:
                    outcomes.setdefault(variant, []).append(self.train(variant, f"{variant}-{number}"))
                except VariantFailed as failure:
                    if self._options.smoke:
                        raise
                    outcomes.pop(variant, None)
                    self.failures[variant] = failure.reason
                    print(f"  {variant} has failed: {failure.reason}", flush=True)
                else:
                    speed = outcomes[variant][-1].tokens_per_second
                    print(f"  {variant:<18} {speed:9.0f} tokens/s", flush=True)
        return outcomes

    def train(self, variant: str, run_name: str) -> TrainerOutcome:
        """Make one run of a variant.

        A peer runs as fast as it can: its activations are recomputed only after it has run out of memory.

        Raises:
            VariantFailed: it ended with an error.
        """
        if variant == "mens":
            return self._trainers.train(run_name)
        if variant.startswith("mens-"):
            return self._trainers.train(run_name, "bench.training.gpu_variants", variant)
        module = "bench.training.gpu_variants" if variant in GPU_PEERS else "bench.training.train_variants"
        if variant not in self._recomputing:
            try:
                return self._trainers.train_peer(variant, run_name, module)
            except VariantFailed as failure:
                if "out of memory" not in failure.reason.lower():
                    raise
                self._recomputing.add(variant)
                print(f"  {variant} recomputes activations from now on", flush=True)
        return self._trainers.train_peer(variant, f"{run_name}-again", module, recompute=True)

    def report(self, outcomes: dict[str, list[TrainerOutcome]], limit: Roofline) -> bool:
        """Print the table and the goals.

        Returns:
            whether all goals are met.

        Raises:
            BenchFailed: in a smoke run, the losses of the variants' first steps differ.
        """
        recipe = self._trainers.recipe
        speed = {
            name: statistics.median(outcome.tokens_per_second for outcome in ones) for name, ones in outcomes.items()
        }
        print(f"{self._options.size}, {len(recipe.rates)} steps of {recipe.rows_per_step} rows,", end=" ")
        print(f"{recipe.tokens()} tokens; {limit}")
        print("variant            tokens/s   of roofline   peak GB")
        for name, reached in speed.items():
            peak = max(outcome.peak_bytes for outcome in outcomes[name]) / 1e9
            print(f"{name:<18} {reached:9.0f} {reached / limit.tokens_per_second:12.1%} {peak:9.2f}")
        for name, reason in self.failures.items():
            print(f"{name:<18} failed: {reason}")
        if "mens" not in outcomes:
            return False
        if self._options.smoke:
            check_first_losses(outcomes)
        met = [
            *self.against_peers(speed),
            self._goal("G2", speed["mens"] / limit.tokens_per_second, 0.65 if self._options.size == "8B" else 0.5),
            *self.against_bf16(outcomes, speed),
            *self.memory(outcomes["mens"][0], limit),
            *self.overhead(outcomes),
        ]
        return all(met)

    def _goal(self, goal: str, ratio: float, target: float, *, at_most: bool = False, **facts: Any) -> bool:
        met = ratio <= target if at_most else ratio >= target
        return print_goal(goal, ratio=round(ratio, 4), target=target, met=met, smoke=self._options.smoke, **facts)

    def against_peers(self, speed: dict[str, float]) -> list[bool]:
        """Judge G1: the speed, compared with the fastest peer and with the peer that most people try first."""
        met = []
        peers = {name: value for name, value in speed.items() if name == "unsloth" or name.startswith("trl")}
        if peers:
            fastest = max(peers, key=lambda name: peers[name])
            ratio = speed["mens"] / peers[fastest]
            met.append(self._goal("G1", ratio, 1.25, peer=fastest, unsloth="unsloth" in peers))
        if "hf" in speed:
            met.append(self._goal("G1-naive", speed["mens"] / speed["hf"], 4.0))
        return met

    def against_bf16(self, outcomes: dict[str, list[TrainerOutcome]], speed: dict[str, float]) -> list[bool]:
        """Judge G3: time of an NF4 step as a multiple of the same weights in bf16; the first step's loss shows equal
        logits.
        """
        met = []
        for name, target in (("mens-cache", 1.03), ("mens-nf4", 1.08)):
            if name in speed and "mens-bf16" in speed:
                same = outcomes[name][0].losses[0] == outcomes["mens-bf16"][0].losses[0]
                ratio, goal = speed["mens-bf16"] / speed[name], f"G3-{name.removeprefix('mens-')}"
                met.append(self._goal(goal, ratio, target, at_most=True, first_loss_identical=same) and same)
        return met

    def memory(self, ours: TrainerOutcome, limit: Roofline) -> list[bool]:
        """Judge G4: the peak compared with the floor with its activations, and with the trainer's own prediction at its
        start.
        """
        memory, budget = ours.facts.get("memory", {}), ours.facts.get("budget", {})
        predicted = budget.get("predicted_bytes") or memory.get("predicted_bytes")
        floor = limit.memory_floor(budget)
        met = [self._goal("G4", ours.peak_bytes / floor, 1.15, at_most=True, floor_bytes=floor)]
        if predicted:
            error = abs(predicted / ours.peak_bytes - 1)
            facts = {"predicted_bytes": predicted, "peak_bytes": ours.peak_bytes}
            met.append(self._goal("G4-estimate", error, 0.1, at_most=True, **facts))
        return met

    def overhead(self, outcomes: dict[str, list[TrainerOutcome]]) -> list[bool]:
        """Judge G5: share of a step's time for metrics and, spread over the usual number of steps, for checkpoints."""
        if "mens-quiet" not in outcomes:
            return []
        loud = statistics.median(outcome.facts["step_seconds"] for outcome in outcomes["mens"])
        quiet = statistics.median(outcome.facts["step_seconds"] for outcome in outcomes["mens-quiet"])
        checkpoint = statistics.median(outcome.facts["checkpoint_seconds"] for outcome in outcomes["mens"])
        share = max(0.0, loud / quiet - 1) + checkpoint / USUAL_STEPS_BETWEEN_CHECKPOINTS / quiet
        return [self._goal("G5", share, 0.02, at_most=True, step_seconds=[quiet, loud], checkpoint_seconds=checkpoint)]


def check_first_losses(outcomes: dict[str, list[TrainerOutcome]]) -> None:
    """Check that the variants whose steps have the same rows start with the same loss.

    Raises:
        BenchFailed: they differ.
    """
    first = {name: ones[0].losses[0] for name, ones in outcomes.items() if ones[0].losses}
    if largest_relative_difference(list(first.values()), [first["mens"]] * len(first)) > LOSS_TOLERANCE:
        raise BenchFailed(f"the first step's losses differ: {first}")

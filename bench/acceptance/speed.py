"""The comparison of ``bench/gpu.py`` within the time of a stage: the product's variants, then the peers, one part each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import cached_property, partial

from bench.acceptance.budget import StageWork
from bench.acceptance.results import PartResult
from bench.acceptance.setting import Setting
from bench.harness.peers import peers_python
from bench.training.gpu_comparison import PRODUCT, GpuComparison
from bench.training.recipe import TrainerOutcome, Trainers
from bench.training.roofline import Roofline
from bench.training.shapes import SHAPES

STEPS = {False: 6, True: 5}
"""Optimizer steps of a variant, normally and in a smoke run."""


class Speed:
    """The parts of the stage, which together decide goals G1 to G5."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._outcomes: dict[str, list[TrainerOutcome]] = {}
        self._limit: Roofline | None = None

    @cached_property
    def _trainers(self) -> Trainers:
        smoke = self._setting.smoke
        rows, accumulated = (2, 1) if smoke else (8, 4)
        return self._setting.trainers(
            self._setting.size, rows_per_batch=rows, grad_accum=accumulated, steps=STEPS[smoke]
        )

    @cached_property
    def _comparison(self) -> GpuComparison:
        options = argparse.Namespace(size=self._setting.size, smoke=self._setting.smoke)
        return GpuComparison(self._trainers, options)

    def work(self) -> StageWork:
        """Return the parts, the most informative first, so that a stage that is cut short has compared the product with
        its peers.
        """
        product, *variants = PRODUCT
        profiled = self._setting.parts("profile", ["kernels"], self._setting.size)
        peers: dict[str, Callable[[], PartResult]] = {}
        if self._setting.device == "cuda":
            peers["unsloth"] = partial(self.train_by_peer, "unsloth", "unsloth")
        peers |= profiled | {"trl-packed-large": partial(self.train_by_peer, "trl-packed-large")}
        others: dict[str, Callable[[], PartResult]] = {name: partial(self.train, name) for name in (*variants, "hf")}
        first: dict[str, Callable[[], PartResult]] = {
            "inputs and peak": self.probe,
            product: partial(self.train, product),
        }
        return StageWork(first | peers | others, self.report)

    def probe(self) -> PartResult:
        """Make the base and rows, and measure the device's peak and copy rate."""
        measured = json.loads(self._trainers.run("bench.training.gpu_variants", "probe", self._setting.device))
        self._limit = Roofline(SHAPES[self._setting.size], self._trainers.recipe, measured)
        return PartResult({"TFLOP/s": measured["flops"] / 1e12, "TB/s": measured["bytes_per_second"] / 1e12})

    def train(self, variant: str) -> PartResult:
        """Make one run of a variant."""
        outcome = self._comparison.train(variant, variant)
        self._outcomes[variant] = [outcome]
        return PartResult({"tokens/s": outcome.tokens_per_second, "peak GB": outcome.peak_bytes / 1e9})

    def train_by_peer(self, variant: str, *modules: str) -> PartResult:
        """Make one run of a peer that needs additional packages."""
        own, self._trainers.peers = self._trainers.peers, peers_python(*modules)
        try:
            return self.train(variant)
        finally:
            self._trainers.peers = own

    def report(self) -> bool:
        """Print the comparison's table and goals of the variants that ran; return whether they are met."""
        return self._limit is not None and self._comparison.report(self._outcomes, self._limit)

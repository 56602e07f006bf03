"""A complete run of the trainer: all steps, a resumed run, a run that runs out of memory, and the same rows trained by
a peer.
"""

from __future__ import annotations

import json
import math
import shutil
from functools import cached_property
from pathlib import Path

from bench.acceptance.budget import StageWork
from bench.acceptance.results import Goal, PartResult
from bench.acceptance.setting import Setting
from bench.harness.command import BenchFailed
from bench.training.recipe import Trainers, largest_relative_difference
from worker.run_folder import SUMMARY_NAME, TELEMETRY_NAME, list_checkpoints

SAME_LOSS = 0.01
"""Largest relative difference of a step's loss, in bf16."""


class Loop:
    """The parts of the stage; each compares its losses with those of the first part."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._losses: list[float] = []

    @cached_property
    def _trainers(self) -> Trainers:
        smoke = self._setting.smoke
        size, steps = ("tiny", 4) if smoke else ("0.6B", 30)
        return self._setting.trainers(size, rows_per_batch=2 if smoke else 4, grad_accum=1 if smoke else 4, steps=steps)

    def work(self) -> StageWork:
        """Return the parts in their order."""
        return StageWork(
            {"train": self.train, "resume": self.resume, "out of memory": self.run_out_of_memory, "peer": self.peer}
        )

    def train(self) -> PartResult:
        """Train all steps with validation and a checkpoint in the middle."""
        outcome = self._trainers.train("train")
        self._losses = outcome.losses
        finite = sum(map(math.isfinite, self._losses))
        figures = {"tokens/s": outcome.tokens_per_second, "first loss": self._losses[0], "last loss": self._losses[-1]}
        planned = len(self._trainers.recipe.rates)
        goal = Goal("A2-steps", finite, planned, at_most=False, facts={"peak_bytes": outcome.peak_bytes})
        return PartResult(figures, [goal])

    def resume(self) -> PartResult:
        """Continue from the checkpoint in the middle, in a new process and folder."""
        checkpoint = list_checkpoints(self._trainers.folder / "train")[0]
        folder = self._run("resumed", "worker.train", "--resume", str(checkpoint))
        losses = _losses_by_step(folder)
        difference = self._difference(losses)
        goal = Goal("A2-resume", difference, SAME_LOSS, facts={"steps": len(losses)})
        return PartResult({"steps": len(losses), "largest loss difference": difference}, [goal])

    def run_out_of_memory(self) -> PartResult:
        """Train with too little memory for the first step's micro-batch."""
        folder = self._run("short", "bench.acceptance.short_memory", "inject" if self._setting.smoke else "limit")
        retries = json.loads((folder / SUMMARY_NAME).read_text())["resume"]["memory_retries"]
        difference = self._difference(_losses_by_step(folder))
        goals = [Goal("A2-retries", retries, 1, at_most=False), Goal("A2-memory", difference, SAME_LOSS)]
        return PartResult({"repeated steps": retries, "largest loss difference": difference}, goals)

    def peer(self) -> PartResult:
        """Train the same rows with `transformers.Trainer` and peft."""
        outcome = self._trainers.train_peer("hf", "hf")
        difference = self._difference(dict(enumerate(outcome.losses, 1)))
        goal = Goal("A2-loss", difference, SAME_LOSS)
        return PartResult({"tokens/s": outcome.tokens_per_second, "largest loss difference": difference}, [goal])

    def _run(self, name: str, module: str, *arguments: str) -> Path:
        folder = self._trainers.folder / name
        folder.mkdir()
        shutil.copy(self._trainers.folder / "plan.json", folder)
        self._trainers.run(module, *arguments, str(folder / "plan.json"), str(folder))
        return folder

    def _difference(self, losses: dict[int, float]) -> float:
        if not self._losses:
            raise BenchFailed("the run for comparison has failed")
        return largest_relative_difference(list(losses.values()), [self._losses[step - 1] for step in losses])


def _losses_by_step(folder: Path) -> dict[int, float]:
    events = [json.loads(line) for line in (folder / TELEMETRY_NAME).read_text().splitlines()]
    steps = (event["payload"] for event in events if event["event"] == "step")
    return {payload["step"]: payload["loss"] for payload in steps}

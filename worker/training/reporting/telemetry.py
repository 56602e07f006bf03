"""Reports of a run while it trains: `telemetry.jsonl` for programs, and `metrics.csv` in the form of OpenAI's result
file.

One line per event: ``{"ts_ms", "event", "payload"}``; `docs/runs.md` lists events and fields.
"""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from shared.counted_nouns import counted
from worker.child_runtime import StopRequested
from worker.run_folder import METRICS_NAME, PREFERENCE_METRICS, TELEMETRY_NAME
from worker.training.metrics import Score, StepReport, finite, mean
from worker.training.reporting.events import SKIP_REASONS, TRACKED, identifier, refuse_text, step_payload
from worker.training.reporting.throughput import MeasuredDevice, Pace, PlannedWork
from worker.training.reporting.tracker_clients import TrackedStatus
from worker.training.reporting.trackers import Trackers

__all__ = ["METRIC_COLUMNS", "TELEMETRY_SCHEMA_VERSION", "Score", "StepReport", "Telemetry", "TrainingSummary"]

TELEMETRY_SCHEMA_VERSION = 1
METRIC_COLUMNS = ("step", "train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy")
LOSS_SMOOTHING = 0.1
# Far below the silence after which the worker ends a trainer.
WORKING_SECONDS = 5.0
PROGRESS_SECONDS = 1.0
"""Longest silence of a part that reports its result only at its end, before it reports progress again."""


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """Duration and totals of training in this process: a resumed run counts from its checkpoint.

    Attributes:
        wall_secs: seconds from the first step until now, validation and checkpoints included.
        ms_per_step: mean of the steps alone; None before the first step.
    """

    wall_secs: float
    total_steps: int
    total_tokens: int
    ms_per_step: float | None

    def __str__(self) -> str:
        pace = "" if self.ms_per_step is None else f", {self.ms_per_step:.1f} ms per step"
        return f"{counted(self.total_steps, 'step')}, {counted(self.total_tokens, 'token')} in {self.wall_secs:.1f} s{pace}"


class Telemetry:
    """The run's telemetry and metrics; a context manager that closes the file and ends the trackers.

    Args:
        run_dir: receives ``telemetry.jsonl`` (appended, every line flushed) and ``metrics.csv``.
        total_steps: optimizer steps of the whole run.
        work: details of the steps, for the remaining time.
        rows: metrics rows of earlier attempts, from the checkpoint, so that a resume repeats none.
        machine: the machine, for MFU and peak memory.
        skips: number of rows left out so far, by reason (``SKIP_REASONS``); :meth:`skipped` updates it.
        trajectory_clamped: rows whose trajectory weight was cut to its bounds.
        trackers: trackers that are already started.
        quiet: whether to only keep the metrics and write nothing, because another process of the run writes them.
    """

    def __init__(
        self,
        run_dir: Path,
        total_steps: int,
        rows: list[dict[str, float]],
        *,
        machine: MeasuredDevice | None = None,
        skips: Mapping[str, int] | None = None,
        trajectory_clamped: int = 0,
        trackers: Trackers | None = None,
        quiet: bool = False,
        work: PlannedWork | None = None,
    ) -> None:
        self._file = (Path(os.devnull) if quiet else run_dir / TELEMETRY_NAME).open("a", encoding="utf-8")
        self._metrics_path = Path(os.devnull) if quiet else run_dir / METRICS_NAME
        self._machine = machine or MeasuredDevice()
        self._trackers = trackers or Trackers([])
        self._total_steps = total_steps
        self._clamped = trajectory_clamped
        self._tokens = 0
        self._ema: float | None = None
        self.skips = dict.fromkeys(SKIP_REASONS, 0)
        self.skipped(**(skips or {}))
        self.rows = rows
        self._smooth_earlier()
        self._pace = Pace(work or PlannedWork.of_equal_steps(total_steps))
        self._reported_at = time.monotonic()
        self._held_back: dict[str, str | int] = {}

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = kind is not None and issubclass(kind, StopRequested)
        self._trackers.finish(
            TrackedStatus.FINISHED if kind is None else TrackedStatus.STOPPED if stopped else TrackedStatus.FAILED
        )
        try:
            self._report_failures()
        finally:
            self._file.close()

    def emit(self, event: str, payload: Mapping[str, Any]) -> None:
        """Write one event."""
        refuse_text(payload)
        line = {"ts_ms": time.time_ns() // 1_000_000, "event": event, "payload": payload}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        self._reported_at = time.monotonic()

    def working(self, activity: str) -> None:
        """Report that a long activity continues, unless an event was emitted just before: the worker ends a silent
        trainer.
        """
        if time.monotonic() - self._reported_at >= WORKING_SECONDS:
            self.emit("working", {"activity": activity})

    def self_evaluation(self, activity: str, done: int, total: int) -> None:
        """Report the progress of the self-evaluation: when a part of it begins or ends, and once a second."""
        self._held_back = {"activity": activity, "items_done": done, "items_total": total}
        if done in (0, total) or time.monotonic() - self._reported_at >= PROGRESS_SECONDS:
            self._emit_held_back()

    def self_evaluated(self, payload: Mapping[str, Any]) -> None:
        """Flush pending progress, then report the result of the self-evaluation."""
        self._emit_held_back()
        self.emit("self_evaluation", payload)

    def _emit_held_back(self) -> None:
        if self._held_back:
            self.emit("self_evaluation_progress", self._held_back)
        self._held_back = {}

    def skipped(self, **counts: int) -> None:
        """Set counts of left-out rows by reason, e.g. ``curriculum`` when an epoch admits fewer.

        Raises:
            KeyError: an unknown reason.
        """
        for reason, count in counts.items():
            if reason not in self.skips:
                raise KeyError(reason)
            self.skips[reason] = count

    def step(self, report: StepReport) -> None:
        """Report a finished optimizer step; a value that is not finite is reported as null."""
        seconds = self._pace.step(report.step)
        self._tokens += report.tokens
        loss = finite(report.score.loss)
        if loss is not None:
            self._add(report.step, train_loss=loss, train_accuracy=report.score.accuracy, **report.extra)
            self._smooth(loss)
        payload = {
            **step_payload(report, self._total_steps),
            "loss_ema": self._ema,
            **self._step_speed(report, seconds),
            **self.skip_fields(),
            "trajectory_clamped_pairs": self._clamped,
        }
        self.emit("step", payload)
        self._track(report.step, payload)

    def validation(self, step: int, score: Score | None) -> None:
        """Report a validation at a step, if it has a score."""
        if score:
            loss = finite(score.loss)
            if loss is not None:
                self._add(step, valid_loss=loss, valid_mean_token_accuracy=score.accuracy)
            payload = {
                "step": step,
                "val_loss": loss,
                "val_token_accuracy": score.accuracy,
                "val_tokens": score.targets,
            }
            self.emit("validation", payload)
            self._track(step, payload)
        self._pace.mark()

    def replay(self, payload: Mapping[str, Any]) -> None:
        """Report the rows of the replay file that are at risk; the time that scoring them took does not count as a
        step's.
        """
        self.emit("replay", payload)
        self._pace.mark()

    def checkpoint(self, step: int, folder: Path) -> None:
        """Report a written checkpoint, with the metrics of its step."""
        metrics = self.rows[-1] if self.rows else {}
        self.emit("checkpoint", {"step": step, "folder": folder.name, "metrics": metrics})
        self._pace.mark()

    def epoch_complete(
        self,
        epoch: int,
        *,
        steps: int,
        step: int,
        score: Score | None,
        val_steps: int,
        checkpoint: Path | None,
        phase: str | None = None,
    ) -> None:
        """Report the end of an epoch.

        Args:
            epoch: 0-based.
            steps: optimizer steps of this epoch, those of earlier attempts included.
            step: last step of this epoch, over the whole run.
            score: score of the validation at its end, if any.
            val_steps: rows of that validation.
            checkpoint: the checkpoint written at its end, if any.
            phase: name of the epoch's phase in the curriculum.
        """
        losses = [row["train_loss"] for row in self.rows if step - steps < row["step"] <= step and "train_loss" in row]
        payload = {
            "epoch": epoch,
            "avg_loss": mean(losses),
            "val_loss": finite(score.loss) if score else None,
            "steps": steps,
            "val_steps": val_steps,
            "global_step": step,
            "checkpoint": checkpoint.name if checkpoint else None,
            "phase": identifier(phase) if phase else None,
        }
        self.emit("epoch_complete", payload)
        self._pace.mark()

    def gpu_fallback(self, component: str, requested_device_kind: str, causes: Iterable[str]) -> None:
        """Report that something requested on a GPU runs on the CPU; ``causes`` are words such as ``no_cuda_device``."""
        causes = list(causes)
        self.emit(
            "gpu_fallback",
            {"component": component, "requested_device_kind": requested_device_kind, "causes": causes},
        )

    def skip_fields(self) -> dict[str, int]:
        """Return counts of left-out rows under the names of events and reports."""
        return {f"skip_{reason}": count for reason, count in self.skips.items()}

    def summary(self) -> TrainingSummary:
        """Return the duration and totals of training until now."""
        steps = self._pace.steps
        pace = 1000 * self._pace.step_seconds / steps if steps else None
        return TrainingSummary(self._pace.wall_seconds, steps, self._tokens, pace)

    def save_metrics(self) -> None:
        """Write the metrics CSV."""
        with self._metrics_path.open("w", newline="", encoding="utf-8") as file:
            further = [name for name in PREFERENCE_METRICS if any(name in row for row in self.rows)]
            writer = csv.DictWriter(file, [*METRIC_COLUMNS, *further], restval="")
            writer.writeheader()
            writer.writerows(self.rows)

    def _add(self, step: int, **metrics: float) -> None:
        if not self.rows or self.rows[-1]["step"] != step:
            self.rows.append({"step": step})
        self.rows[-1].update(metrics)

    def _smooth(self, loss: float) -> None:
        self._ema = loss if self._ema is None else self._ema + LOSS_SMOOTHING * (loss - self._ema)

    def _smooth_earlier(self) -> None:
        for row in self.rows:
            if "train_loss" in row:
                self._smooth(row["train_loss"])

    def _step_speed(self, report: StepReport, seconds: float) -> dict[str, Any]:
        targets = report.score.targets
        # Without padding; the common prefix of a pair's chats is computed once.
        computed = min(report.tokens, report.positions)
        return {
            "eta_seconds_remaining": self._pace.eta_seconds(report.step),
            "progress_fraction": report.step / max(self._total_steps, 1),
            "steps_per_sec_ema": self._pace.steps_per_second,
            "step_seconds": seconds,
            "tokens_per_sec": report.tokens / seconds,
            "tokens_per_sec_is_proxy": False,
            "supervised_tokens_per_sec": targets / seconds,
            "mfu": self._machine.mfu(tokens=computed, attended_keys=report.keys, targets=targets, seconds=seconds),
            "peak_memory_bytes": self._machine.peak_memory(),
        }

    def _track(self, step: int, payload: Mapping[str, Any]) -> None:
        scalars = {name: payload[field] for field, name in TRACKED.items() if payload.get(field) is not None}
        self._trackers.log(step, scalars)
        self._report_failures()

    def _report_failures(self) -> None:
        for failure in self._trackers.failures():
            self.emit("tracker_failed", {"tracker": failure.tracker, "error": failure.error})

"""What a run tells the world while it goes on: `telemetry.jsonl` for machines, `metrics.csv` as OpenAI's result file.

One line per event: ``{"ts_ms", "event", "payload"}``. No text of the training data is ever written.
"""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from worker.rundir import METRICS_NAME, TELEMETRY_NAME

METRIC_COLUMNS = ("step", "train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy")
RATE_SMOOTHING = 0.2
STEPS_BEFORE_ETA = 8


class Score(NamedTuple):
    """Means over ``targets`` supervised positions: loss in nats, share of positions the arg-max predicts."""

    loss: float
    accuracy: float
    targets: int


class Telemetry:
    """The run's telemetry and metrics; a context manager that closes the file.

    Args:
        run_dir: receives ``telemetry.jsonl`` (appended, every line flushed) and ``metrics.csv``.
        total_steps: optimizer steps of the whole run.
        rows: metrics rows of earlier attempts, from the checkpoint, so that a resume repeats none.
    """

    def __init__(self, run_dir: Path, total_steps: int, rows: list[dict[str, float]]) -> None:
        self._file = (run_dir / TELEMETRY_NAME).open("a", encoding="utf-8")
        self._metrics_path = run_dir / METRICS_NAME
        self._pace = Pace(total_steps)
        self._total_steps = total_steps
        self.rows = rows

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def emit(self, event: str, payload: Mapping[str, Any]) -> None:
        """Write one event."""
        line = {"ts_ms": time.time_ns() // 1_000_000, "event": event, "payload": payload}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def step(self, step: int, epoch: int, score: Score, *, norm: float, rate: float, tokens: int) -> None:
        """A finished optimizer step over ``tokens`` real tokens; a value that is not finite is told as null."""
        loss = score.loss if math.isfinite(score.loss) else None
        if loss is not None:
            self._add(step, train_loss=loss, train_accuracy=score.accuracy)
        payload = {
            "epoch": epoch,
            "step": step,
            "total_steps": self._total_steps,
            "loss": loss,
            "token_accuracy": score.accuracy,
            "learning_rate": rate,
            "grad_norm": norm if math.isfinite(norm) else None,
            "valid_tokens": score.targets,
            "supervised_ratio_pct": 100 * score.targets / max(tokens, 1),
            **self._pace.step(step, tokens),
        }
        self.emit("step", payload)

    def validation(self, step: int, score: Score | None) -> None:
        """A validation at a step, if there was one."""
        if score:
            loss = score.loss if math.isfinite(score.loss) else None
            if loss is not None:
                self._add(step, valid_loss=loss, valid_mean_token_accuracy=score.accuracy)
            self.emit("validation", {"step": step, "val_loss": loss, "val_token_accuracy": score.accuracy})

    def checkpoint(self, step: int, folder: Path) -> None:
        """A written checkpoint, with the metrics of its step."""
        metrics = self.rows[-1] if self.rows else {}
        self.emit("checkpoint", {"step": step, "folder": folder.name, "metrics": metrics})

    def save_metrics(self) -> None:
        """Write the metrics CSV."""
        with self._metrics_path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, METRIC_COLUMNS, restval="")
            writer.writeheader()
            writer.writerows(self.rows)

    def _add(self, step: int, **metrics: float) -> None:
        if not self.rows or self.rows[-1]["step"] != step:
            self.rows.append({"step": step})
        self.rows[-1].update(metrics)


class Pace:
    """Measured speed of this process: steps per second, tokens per second, time left."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._last = time.monotonic()
        self._seen = 0
        self._seconds_per_step = 0.0

    def step(self, done: int, tokens: int) -> dict[str, float | None]:
        """Note a finished step; returns the pace fields of the step event.

        Args:
            done: optimizer steps done since the run began, earlier attempts included.
            tokens: real tokens of this step.
        """
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        self._seen += 1
        weight = 1.0 if self._seen == 1 else RATE_SMOOTHING
        self._seconds_per_step += weight * (seconds - self._seconds_per_step)
        eta = (self._total - done) * self._seconds_per_step if self._seen >= STEPS_BEFORE_ETA else None
        return {
            "steps_per_sec_ema": 1 / max(self._seconds_per_step, 1e-9),
            "tokens_per_sec": tokens / max(seconds, 1e-9),
            "eta_seconds_remaining": eta,
            "progress_fraction": done / max(self._total, 1),
        }

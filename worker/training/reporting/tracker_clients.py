"""The clients of TensorBoard, MLflow and Weights & Biases behind one small protocol.

Each client is imported when a run starts to use it. Any exception in a client drops it
(`worker/training/reporting/trackers.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from worker.settings import TrackerName

TENSORBOARD_FOLDER = "tensorboard"
TENSORBOARD_FLUSH_SECONDS = 5
PROJECT = "mens"
"""MLflow's experiment and W&B's project, unless their own variables say otherwise."""
MLFLOW_BATCH = 100
"""Metrics or parameters per request; MLflow accepts 1,000 metrics and 100 parameters."""
WANDB_START_SECONDS = 20.0
"""Longest wait for the start of a run at W&B's server; the client's default of 90 s would make the trainer wait at its
end.
"""
Value = str | int | float | bool | None


class TrackedStatus(StrEnum):
    """Outcome of a run."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


class Point(NamedTuple):
    """Scalars of a step, with the time they were measured at (milliseconds since 1970)."""

    step: int
    ts_ms: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """Description of a run that a tracker gets at its start.

    Attributes:
        run_id: the same for all attempts at a run, so that a tracker continues the same record.
        name: display name.
        folder: run folder; only files are written there.
    """

    run_id: str
    name: str
    folder: Path
    params: Mapping[str, Value]


class Tracker(Protocol):
    """A tracker's client. Called from one thread; any exception drops it."""

    def start(self, run: TrackedRun) -> None: ...
    def write(self, points: Sequence[Point]) -> None: ...
    def finish(self, status: TrackedStatus) -> None: ...


class TensorBoard:
    """Event files in ``run_dir/tensorboard``: ``tensorboard --logdir RUNS`` finds them."""

    def start(self, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / TENSORBOARD_FOLDER), flush_secs=TENSORBOARD_FLUSH_SECONDS)
        table = ["| parameter | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in run.params.items())]
        self._writer.add_text("run", "\n".join(table))

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            for name, value in point.metrics.items():
                self._writer.add_scalar(name, value, point.step, walltime=point.ts_ms / 1000)

    def finish(self, status: TrackedStatus) -> None:  # noqa: ARG002 - an event file has no status
        self._writer.close()


class Mlflow:
    """A run in the experiment ``MLFLOW_EXPERIMENT_NAME`` at ``MLFLOW_TRACKING_URI``."""

    _ENDED = {TrackedStatus.FINISHED: "FINISHED", TrackedStatus.FAILED: "FAILED", TrackedStatus.STOPPED: "KILLED"}

    def start(self, run: TrackedRun) -> None:
        if not os.environ.get("MLFLOW_TRACKING_URI"):  # otherwise MLflow creates a database in the working folder
            raise LookupError("MLFLOW_TRACKING_URI is not set")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric, self._client = Metric, MlflowClient()
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        earlier = self._client.search_runs([experiment], f"tags.`mens.run_id` = '{run.run_id}'", max_results=1)
        if earlier:
            self._run_id = earlier[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            return
        tags = {"mens.run_id": run.run_id}
        self._run_id = self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        params = [Param(key, str(value)) for key, value in run.params.items()]
        for start in range(0, len(params), MLFLOW_BATCH):
            self._client.log_batch(self._run_id, params=params[start : start + MLFLOW_BATCH])

    def write(self, points: Sequence[Point]) -> None:
        values = [
            self._metric(name, value, point.ts_ms, point.step)
            for point in points
            for name, value in point.metrics.items()
        ]
        for start in range(0, len(values), MLFLOW_BATCH):
            self._client.log_batch(self._run_id, metrics=values[start : start + MLFLOW_BATCH])

    def finish(self, status: TrackedStatus) -> None:
        self._client.set_terminated(self._run_id, self._ENDED[status])

    def _experiment(self, name: str) -> str:
        """Return the id of the experiment, created if it does not exist; two runs may try at once."""
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name))
            except Exception:
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)


class Wandb:
    """A run in the project ``WANDB_PROJECT``; ``WANDB_MODE=offline`` keeps it in the run folder."""

    def start(self, run: TrackedRun) -> None:
        if not (os.environ.get("WANDB_MODE") or os.environ.get("WANDB_API_KEY")):
            raise LookupError("neither WANDB_API_KEY nor WANDB_MODE is set")
        import wandb

        quiet = wandb.Settings(
            console="off", silent=True, save_code=False, disable_git=True, init_timeout=WANDB_START_SECONDS
        )
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.run_id,
            name=run.name,
            dir=str(run.folder),
            config=dict(run.params),
            resume="allow",
            settings=quiet,
        )

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log(dict(point.metrics), step=point.step)

    def finish(self, status: TrackedStatus) -> None:
        self._run.finish(exit_code=0 if status is TrackedStatus.FINISHED else 1)


CLIENTS: dict[TrackerName, Callable[[], Tracker]] = {
    TrackerName.TENSORBOARD: TensorBoard,
    TrackerName.MLFLOW: Mlflow,
    TrackerName.WANDB: Wandb,
}

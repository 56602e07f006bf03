"""The runs that ``python -m bench.console`` shows in every page: the same numbers for the product and its peers.

python -m bench.serving.console_runs mlflow|tensorboard FOLDER RUNS STEPS POINTS    write them as a peer's server reads them

It imports only the standard library, because peers run it in their own environments.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SERIES = ("train_loss", "learning_rate", "gradient_norm", "tokens_per_second")
LONG = "long"
"""Name of the run with many steps."""
MLFLOW_BATCH = 1000
"""Largest number of metrics that MLflow accepts in one call."""


@dataclass(frozen=True)
class SharedRuns:
    """Runs with four series each; the first one is long, and has one series.

    Attributes:
        count: number of runs.
        steps: number of steps of each run except the long one.
        points: number of steps of the long run.
    """

    count: int
    steps: int
    points: int

    def names(self) -> Iterator[str]:
        """Yield the names of the runs; the long one is last, so that lists that begin with the newest run begin with
        it.
        """
        yield from (f"run-{number:03}" for number in range(self.count - 1))
        yield LONG

    def series_of(self, name: str) -> dict[str, list[float]]:
        """Return the values of each step of a run, by series."""
        if name == LONG:
            return {"train_loss": [_value(0, step) for step in range(1, self.points + 1)]}
        number = int(name.rpartition("-")[2])
        return {
            series: [_value(number + place, step) for step in range(1, self.steps + 1)]
            for place, series in enumerate(SERIES)
        }


def _value(seed: int, step: int) -> float:
    """Return a decreasing value with noise that is the same on every machine."""
    noise = math.sin(step * 12.9898 + seed * 78.233) * 43_758.5453
    return 3 / (1 + step / 200) + 0.2 * (noise - math.floor(noise))


def write_mlflow(folder: Path, runs: SharedRuns) -> None:
    """Write the runs into MLflow's database, through its own client."""
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.create_experiment("bench", artifact_location=f"{folder}/artifacts")
    now = int(time.time() * 1000)
    for name in runs.names():
        run = client.create_run(experiment, run_name=name)
        metrics = [
            Metric(series, value, now + step, step)
            for series, values in runs.series_of(name).items()
            for step, value in enumerate(values, 1)
        ]
        for start in range(0, len(metrics), MLFLOW_BATCH):
            client.log_batch(run.info.run_id, metrics[start : start + MLFLOW_BATCH], synchronous=True)
        client.set_terminated(run.info.run_id)
        print(run.info.run_id)


def write_tensorboard(folder: Path, runs: SharedRuns) -> None:
    """Write the runs as event files with TensorBoard's own writer."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    now = time.time()
    for name in runs.names():
        writer = EventFileWriter(str(folder / "runs" / name))
        for series, values in runs.series_of(name).items():
            for step, value in enumerate(values, 1):
                scalar = Summary(value=[Summary.Value(tag=series, simple_value=value)])
                writer.add_event(Event(wall_time=now + step, step=step, summary=scalar))
        writer.close()


WRITERS: dict[str, Callable[[Path, SharedRuns], None]] = {"mlflow": write_mlflow, "tensorboard": write_tensorboard}


def main() -> None:
    """Entry point."""
    peer, folder, *sizes = sys.argv[1:]
    WRITERS[peer](Path(folder), SharedRuns(*map(int, sizes)))


if __name__ == "__main__":
    main()

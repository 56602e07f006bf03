"""Servers of ``python -m bench.console``: the API, MLflow's and TensorBoard's, holding the same runs."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.command import BenchFailed
from bench.harness.loopback import ROOT, free_port, server
from bench.harness.peers import isolated_python
from bench.serving.console_runs import LONG, SharedRuns
from bench.serving.gateway_variants import BASE, FakeInstallation

if TYPE_CHECKING:
    from shared.database.connection import Database
    from shared.database.leases import Lease, Leases
    from shared.job_series import SeriesChunk

START_SECONDS = 300.0
MLFLOW_ROW, MLFLOW_CURVE = 'a[href*="/runs/"]', ".js-plotly-plot .main-svg"
TENSORBOARD_ROW, TENSORBOARD_CURVE = "runs-data-table tb-data-table-content-row", "line-chart canvas"
LOCK = "console-peers"
TENANTS = ("runs", "busy", "many")
"""Tenants of the installation: one with the shared runs, one with running jobs, one with thousands of jobs."""
MANY_RUNNING = 10
"""Number of running jobs among thousands."""
STEPS = 100_000
"""Steps of the jobs of the last two tenants."""
MLFLOW_QUIET = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Settings of MLflow's server: workers of its job queue are not started, because no page here uses them."""


@dataclass(frozen=True)
class ViewedPages:
    """The pages of one server for the same runs.

    Attributes:
        runs: address of the list of runs.
        run: address of the long run's curves.
        row: selector of a row in the list.
        curve: selector of a drawn curve.
    """

    runs: str
    run: str
    row: str
    curve: str


@dataclass(frozen=True)
class SeededJobs:
    """Jobs and keys that an installation was seeded with.

    Attributes:
        keys: secrets of keys, by tenant.
        long_id: id of the job with many steps.
        running: leases of running jobs.
    """

    keys: dict[str, str]
    long_id: str
    running: list[Lease]


def seed(home: Path, runs: SharedRuns, running: int, many: int) -> SeededJobs:
    """Seed the database of an installation, whose API may be running: one tenant with the runs, one with running jobs
    and one with many jobs.
    """
    from shared.database.callers.keys import Keys
    from shared.database.connection import Database
    from shared.database.leases import Leases
    from shared.settings import Settings

    database = Database(Settings(home=home).database_url)
    try:
        keys = {tenant: Keys(database).create(f"bench-{tenant}", tenant=tenant)[1] for tenant in TENANTS}
        leases, long_id = Leases(database, 86_400), ""
        for name in runs.names():
            lease = _claimed(leases, "runs", name)
            leases.report(lease, events=[], series=_chunks(runs, name))
            leases.finish(lease, {})
            long_id = lease.job.id if name == LONG else long_id
        busy = [_claimed(leases, "busy", f"run-{number:03}") for number in range(running)]
        for lease in busy:
            leases.report(lease, progress=training_progress(1, 3.0), events=[])
        _seed_many(leases, many)
        return SeededJobs(keys, long_id, busy)
    finally:
        database.close()


def _seed_many(leases: Leases, count: int) -> None:
    """Seed many jobs as an installation has them: nearly all have finished, and the newest run."""
    finished = _claimed(leases, "many", "run")
    leases.report(finished, progress=training_progress(STEPS, 0.5), events=[])
    leases.finish(finished, {"optimizer_steps": STEPS, "planned_steps": STEPS, "last_train_loss": 0.5})
    _copy(leases.database, finished.job.id, count - 1 - MANY_RUNNING)
    for number in range(MANY_RUNNING):
        leases.report(_claimed(leases, "many", f"now-{number}"), progress=training_progress(1, 3.0), events=[])


def training_progress(step: int, loss: float) -> dict[str, Any]:
    """Return the progress of a job in training."""
    return {"kind": "training", "step": step, "total_steps": STEPS, "loss": loss, "eta_seconds": 600.0}


def _claimed(leases: Leases, tenant: str, name: str) -> Lease:
    from shared.database.jobs import Jobs
    from shared.database.records import Kind, Submission

    submission = Submission(kind=Kind.FINETUNE, base_model=BASE, name=name, contract={}, plan={})
    lease = leases.claim(Jobs(leases.database, tenant).submit(submission)[0].id, "bench")
    if lease is None:
        raise BenchFailed("a job could not be claimed although no other job competed with it")
    return lease


def _chunks(runs: SharedRuns, name: str) -> list[SeriesChunk]:
    from shared.job_series import ABSENT, CHUNK_STEPS, SeriesChunk

    chunks = []
    for series, values in runs.series_of(name).items():
        for number in range(math.ceil(len(values) / CHUNK_STEPS)):
            part = values[number * CHUNK_STEPS : (number + 1) * CHUNK_STEPS]
            chunks.append(SeriesChunk.of(series, number, part + [ABSENT] * (CHUNK_STEPS - len(part))))
    return chunks


def _copy(database: Database, job_id: str, times: int) -> None:
    """Insert copies of a job, each a second older, in one statement: submitting them one by one takes a minute."""
    from sqlalchemy import insert, select
    from ulid import ULID

    from shared.database.tables.jobs import JobRow

    with database.write() as session:
        row = session.scalars(select(JobRow).where(JobRow.id == job_id)).one()
        columns = [column.key for column in JobRow.__mapper__.column_attrs if column.key != "preflight"]
        values = {name: getattr(row, name) for name in columns}
        copies = []
        for number in range(1, times + 1):
            created = row.created_at - timedelta(seconds=number)
            new = f"ftjob-{str(ULID.from_datetime(created)).lower()}"
            copies.append(values | {"id": new, "name": f"run-{number}", "created_at": created, "preflight": {}})
        session.execute(insert(JobRow), copies)


@contextmanager
def mens(home: Path, runs: SharedRuns, options: argparse.Namespace) -> Iterator[tuple[FakeInstallation, SeededJobs]]:
    """Run the seeded API in front of a fake replica; a single key may hold the streams of all pages."""
    streams = str(options.pages)
    limits = {"MENS_MAX_EVENT_STREAMS": streams, "MENS_TENANT_EVENT_STREAMS": streams}
    with FakeInstallation(home, pace=0.0, settings=limits) as installation:
        yield installation, seed(home, runs, options.running, options.jobs)


@contextmanager
def mlflow(folder: Path, runs: SharedRuns) -> Iterator[ViewedPages]:
    """Run MLflow's server with the runs in SQLite, which it uses by default."""
    folder.mkdir()
    python, environment = isolated_python(LOCK), MLFLOW_QUIET
    run_id = _write(python, "mlflow", folder, runs, environment)[-1]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    arguments = ["-m", "mlflow", "server", *store, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with server(arguments, f"{url}/health", START_SECONDS, environment, python=python):
        yield ViewedPages(
            f"{url}/#/experiments/1/runs",
            f"{url}/#/experiments/1/runs/{run_id}/model-metrics",
            MLFLOW_ROW,
            MLFLOW_CURVE,
        )


@contextmanager
def tensorboard(folder: Path, runs: SharedRuns) -> Iterator[ViewedPages]:
    """Run TensorBoard with the runs as event files."""
    folder.mkdir()
    python = isolated_python(LOCK)
    _write(python, "tensorboard", folder, runs, {})
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = ["-m", "tensorboard.main", "--logdir", str(folder / "runs"), "--host", "127.0.0.1", "--port", str(port)]
    with server(arguments, url, START_SECONDS, {}, python=python):
        yield ViewedPages(f"{url}/#timeseries", f"{url}/#timeseries", TENSORBOARD_ROW, TENSORBOARD_CURVE)


def _write(python: Path, peer: str, folder: Path, runs: SharedRuns, environment: dict[str, str]) -> list[str]:
    """Write the runs for a peer; return the lines that its writer printed."""
    sizes = map(str, (runs.count, runs.steps, runs.points))
    command = [str(python), "-m", "bench.serving.console_runs", peer, str(folder), *sizes]
    run = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise BenchFailed(f"{peer} could not write the runs:\n{run.stderr[-2000:]}")
    return run.stdout.split()

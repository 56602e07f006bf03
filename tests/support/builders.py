"""Valid values from which tests start, and queries of a database."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

from sqlalchemy import select

from shared.base_models.catalog import BaseModelEntry, LocalSource
from shared.contract.contracts import FineTuneContract
from shared.contract.plan import DataFile
from shared.database.adapters import NewAdapter
from shared.database.connection import Database
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.leases import Lease, Leases
from shared.database.records import Job, Kind, Submission
from shared.database.tables.schema import METADATA

T = TypeVar("T")

BASE = "tiny"
LEASE_SECONDS = 60.0
ROWS = b'{"prompt": "a", "response": "b"}\n' * 40


def contract(**sections: Any) -> FineTuneContract:
    """A contract with all defaults, except for the given sections."""
    fields = {"model": {"hf_repo": "tiny"}, "data": {"train_file": "file-1"}}
    return FineTuneContract.model_validate(fields | sections)


def base_entry(name: str = "tiny", **digests: str) -> BaseModelEntry:
    """A catalogue entry of a local base."""
    files = digests or {"config.json": "a" * 64, "model.safetensors": "b" * 64}
    return BaseModelEntry(name=name, source=LocalSource(path="bases/tiny"), digests=files)


def data_file(rows: int = 100, sha256: str = "c" * 64, file_id: str = "file-1") -> DataFile:
    """An uploaded file."""
    return DataFile(file_id=file_id, sha256=sha256, bytes=rows * 50, rows=rows)


def submission(**changes: Any) -> Submission:
    """A request for a job."""
    fields = {"kind": Kind.FINETUNE, "base_model": "tiny", "name": "demo", "contract": {"a": 1}, "plan": {"b": 2}}
    return Submission.model_validate(fields | changes)


def new_adapter(name: str = "demo@1", **changes: Any) -> NewAdapter:
    """An adapter that a job produced."""
    fields = {"id": name, "digest": "d" * 64, "base_model": "tiny", "step": 7, "manifest": {"rank": 8}}
    return NewAdapter.model_validate({"final": True, "published": True} | fields | changes)


def claimed(jobs: Jobs, leases: Leases, **changes: Any) -> Lease:
    """A lease of a new job."""
    job, _ = jobs.submit(submission(**changes))
    lease = leases.claim(job.id, "worker-1")
    assert lease is not None
    return lease


def job_in(state: JobState, jobs: Jobs, leases: Leases) -> tuple[Job, Lease | None]:
    """A job that was brought into a state by the usual operations, and its last lease."""
    if state in (JobState.QUEUED, JobState.PAUSED):
        job, _ = jobs.submit(submission())
        return (jobs.pause(job.id) if state is JobState.PAUSED else job), None
    lease = claimed(jobs, leases)
    if state is JobState.SUCCEEDED:
        leases.finish(lease, {})
    elif state is JobState.CANCELLED:
        leases.stop(lease)
    elif state is JobState.FAILED:
        from shared.errors import Code, JobFailed

        leases.fail(lease, JobFailed(Code.TRAINER_CRASHED, "It crashed."))
    return jobs.get(lease.job.id), lease


def snapshot(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    with database.read() as session:
        return {
            table.name: [tuple(row) for row in session.execute(select(table).order_by(*table.primary_key.columns))]
            for table in METADATA.sorted_tables
        }


def at_once(count: int, call: Callable[[int], T]) -> list[T]:
    """Run `call(0) … call(count - 1)` in threads that start together."""
    barrier = Barrier(count)

    def run(index: int) -> T:
        barrier.wait(60)
        return call(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))

"""Valid values for tests to start from, and looks into a database."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

from sqlalchemy import select

from shared.catalog import BaseModelEntry, LocalSource
from shared.contract import FineTuneContract
from shared.db import Database
from shared.job import Job, Kind, Submission
from shared.jobstate import State
from shared.lease import Lease, LeaseLedger
from shared.ledger import Ledger
from shared.planner import DataFile
from shared.registry import NewAdapter
from shared.tables import Base

T = TypeVar("T")


def contract(**sections: Any) -> FineTuneContract:
    """A contract with every default, changed by whole sections."""
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
    """An adapter that a job made."""
    fields = {"id": name, "digest": "d" * 64, "base_model": "tiny", "step": 7, "manifest": {"rank": 8}}
    return NewAdapter.model_validate({"final": True, "published": True} | fields | changes)


def claimed(ledger: Ledger, leases: LeaseLedger, **changes: Any) -> Lease:
    """A lease of a new job."""
    job, _ = ledger.submit(submission(**changes))
    lease = leases.claim(job.id, "worker-1")
    assert lease is not None
    return lease


def job_in(state: State, ledger: Ledger, leases: LeaseLedger) -> tuple[Job, Lease | None]:
    """A job that came to a state by the verbs, and its last lease."""
    if state in (State.QUEUED, State.PAUSED):
        job, _ = ledger.submit(submission())
        return (ledger.pause(job.id) if state is State.PAUSED else job), None
    lease = claimed(ledger, leases)
    if state is State.SUCCEEDED:
        leases.finish(lease, {})
    elif state is State.CANCELLED:
        leases.stop(lease)
    elif state is State.FAILED:
        from shared.errors import Code, JobFailed

        leases.fail(lease, JobFailed(Code.TRAINER_CRASHED, "It crashed."))
    return ledger.get(lease.job.id), lease


def snapshot(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    with database.read() as session:
        return {
            table.name: [tuple(row) for row in session.execute(select(table).order_by(*table.primary_key.columns))]
            for table in Base.metadata.sorted_tables
        }


def at_once(count: int, call: Callable[[int], T]) -> list[T]:
    """Run `call(0) … call(count - 1)` in threads that start together."""
    barrier = Barrier(count)

    def run(index: int) -> T:
        barrier.wait(10)
        return call(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))

"""Inventory of everything that a retention policy may remove, from the database and from this machine's disk."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import case, select
from sqlalchemy.orm import Session

from shared.artifacts.base_folders import is_elsewhere
from shared.artifacts.storage import Storage
from shared.base_models.catalog import LocalSource, load_catalog
from shared.database.connection import Database
from shared.database.deletions import STORING, adapter_needed_by, models_requested_by, named_by, open_jobs
from shared.database.job_states import FINAL, JobState
from shared.database.records import Kind
from shared.database.routing import Routing
from shared.database.tables.adapters import AdapterRow, CheckpointPermissionRow
from shared.database.tables.jobs import JobRow
from shared.database.tables.names import AliasMoveRow, AliasRow
from shared.host import measure_folder
from shared.retention.policy import PastJob, PreparedFile, StoredAdapter, Uses

MODEL, MODEL_DELETED = "model_digest", "model_deleted_at"
"""Keys in a merge job's result."""
CLOCKS_DIFFER = timedelta(minutes=10)
"""Largest assumed difference between a file's time and the database's."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """State of the database at one moment.

    Attributes:
        adapters: adapters of every tenant, not being deleted.
        uses: uses of these adapters.
        jobs: the finished ones.
        models_needed: digests of merged models that an unfinished job might make again.
        in_use_since: start of the earliest running job; None: no job is running.
    """

    now: datetime
    adapters: list[StoredAdapter]
    uses: Uses
    jobs: list[PastJob]
    models_needed: frozenset[str]
    in_use_since: datetime | None


def take_inventory(database: Database, alias_moves: int) -> Inventory:
    """Read the inventory from the database.

    Args:
        database: the installation's.
        alias_moves: number of an alias's last moves whose adapters count as needed.
    """
    finished = select(JobRow).where(JobRow.state.in_([str(state) for state in FINAL])).order_by(JobRow.id)
    with database.read() as session:
        unfinished = open_jobs(session)
        merges = list(session.scalars(select(JobRow).where(JobRow.kind == Kind.MERGE)))
        merging = {job.plan.get("adapter_digest") for job in unfinished if job.kind == Kind.MERGE}
        began = [job.started_at for job in unfinished if job.state == JobState.RUNNING and job.started_at]
        return Inventory(
            now=database.now(session),
            adapters=stored_adapters(session),
            uses=uses_of(session, unfinished, alias_moves),
            jobs=[
                PastJob(row.id, row.finished_at, None if MODEL_DELETED in row.result else row.result.get(MODEL))
                for row in session.scalars(finished)
                if row.finished_at
            ],
            models_needed=frozenset(
                job.result[MODEL] for job in merges if MODEL in job.result and job.plan["adapter_digest"] in merging
            ),
            in_use_since=min(began) - CLOCKS_DIFFER if began else None,
        )


def prepared_files(folder: Path) -> list[PreparedFile]:
    """List the encoded data files of a cache; a trainer that reads one updates the time of one of its files."""
    return [PreparedFile(path.name, *measure_folder(path)) for path in _folders(folder) if path.name[0] != "."]


def run_folders(folder: Path) -> list[str]:
    """Return the ids of the jobs that have a run folder."""
    return [path.name for path in _folders(folder)]


def models_that_are_bases(catalog_path: Path, storage: Storage) -> frozenset[str]:
    """Return the digests of stored models that are bases of the catalogue: their files are trained on and served in
    place, or fetched by machines without a copy.
    """
    bases = load_catalog(catalog_path).bases
    folders = [catalog_path.parent / base.source.path for base in bases if isinstance(base.source, LocalSource)]
    fetched = {base.merged_from.digest for base in bases if base.merged_from and is_elsewhere(base, catalog_path)}
    return storage.digests_at("models", folders) | fetched


def stored_adapters(session: Session, jobs: Collection[str] | None = None) -> list[StoredAdapter]:
    """Return every tenant's adapters that are not being deleted, oldest first; their manifests are not read.

    Args:
        jobs: only the adapters of these jobs.
    """
    stopped_at = case((JobRow.state.in_([str(JobState.FAILED), str(JobState.CANCELLED)]), JobRow.finished_at))
    columns = {field.name: getattr(AdapterRow, field.name, stopped_at) for field in fields(StoredAdapter)}
    query = select(*columns.values()).outerjoin(JobRow, JobRow.id == AdapterRow.job_id)
    query = query.where(AdapterRow.deleting_at.is_(None))
    if jobs is not None:
        query = query.where(AdapterRow.job_id.in_(jobs))
    rows = session.execute(query.order_by(AdapterRow.created_at, AdapterRow.step, AdapterRow.id))
    return [StoredAdapter(*row) for row in rows]


def uses_of(session: Session, unfinished: list[JobRow], alias_moves: int) -> Uses:
    """Return which adapters names, rollbacks and unfinished jobs need, and since when the others are not aliased.

    Args:
        unfinished: jobs whose adapters count as needed.
        alias_moves: number of an alias's last moves whose adapters count as needed.
    """
    needed, left_at = set[str](), dict[str, datetime]()
    for alias in session.scalars(select(AliasRow)):
        needed |= named_by(alias)
    seen: dict[tuple[str, str], int] = {}
    for move in session.scalars(select(AliasMoveRow).order_by(AliasMoveRow.version.desc())):
        before, after = _adapters_in(move.before), _adapters_in(move.after)
        number = seen[move.tenant, move.alias] = seen.get((move.tenant, move.alias), 0) + 1
        if number <= alias_moves:
            needed |= before | after
        for adapter_id in before - after:
            left_at[adapter_id] = max(move.moved_at, left_at.get(adapter_id, move.moved_at))
    digests = {digest for job in unfinished for digest in job.progress.get(STORING, [])}
    digests |= {digest for job in unfinished if (digest := adapter_needed_by(job.kind, job.plan))}
    needed |= set(session.scalars(select(AdapterRow.id).where(AdapterRow.digest.in_(digests))))
    for job_models in models_requested_by(session, unfinished).values():
        needed |= job_models
    return Uses(needed, left_at)


def needed_adapters(database: Database, alias_moves: int) -> set[str]:
    """Return the ids of the adapters that cannot be deleted now or that a rollback needs, including those that other
    tenants may use.

    Args:
        database: the installation's.
        alias_moves: number of an alias's last moves whose adapters count as needed.
    """
    with database.read() as session:
        lent = session.scalars(select(CheckpointPermissionRow.adapter_id))
        return {*uses_of(session, open_jobs(session), alias_moves).needed, *lent}


def _adapters_in(state: dict[str, Any] | None) -> set[str]:
    """Return the adapters of one side of a move: an alias's, or the target of a foreign name."""
    if state is None:
        return set()
    if "targets" in state:
        return set(Routing.model_validate(state).adapters)
    return {state["name"]} if state["kind"] == "adapter" else set()


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []

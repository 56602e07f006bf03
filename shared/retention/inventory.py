"""What the installation holds that a retention policy may remove: from the database, and from this machine's disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.catalog import LocalSource, load_catalog
from shared.db import Database
from shared.deletion import STORING, named_by, open_jobs
from shared.job import Kind
from shared.jobstate import FINAL, State
from shared.retention import PastJob, PreparedFile, StoredAdapter, Uses
from shared.routing import Routing
from shared.storage import Storage
from shared.tables import AdapterRow, AliasMoveRow, AliasRow, JobRow

MODEL, MODEL_DELETED = "model_digest", "model_deleted_at"
"""Keys in a merge job's result."""
CLOCKS_DIFFER = timedelta(minutes=10)
"""How far a file's time may be from the database's."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the database knows, at one moment.

    Attributes:
        adapters: of every tenant, not being deleted.
        uses: what needs them.
        jobs: the finished ones.
        models_needed: digests of merged models that an unfinished job might make again.
        in_use_since: when the first of the running jobs began; None: none runs.
    """

    now: datetime
    adapters: list[StoredAdapter]
    uses: Uses
    jobs: list[PastJob]
    models_needed: frozenset[str]
    in_use_since: datetime | None


def take_inventory(database: Database, alias_moves: int) -> Inventory:
    """Look into the database.

    Args:
        database: the installation's.
        alias_moves: an adapter that one of the last so many moves of an alias names counts as needed.
    """
    with database.read() as session:
        open_ = open_jobs(session)
        merges = list(session.scalars(select(JobRow).where(JobRow.kind == Kind.MERGE)))
        merging = {job.plan.get("adapter_digest") for job in open_ if job.kind == Kind.MERGE}
        began = [job.started_at for job in open_ if job.state == State.RUNNING and job.started_at]
        return Inventory(
            now=database.now(session),
            adapters=_adapters(session),
            uses=_uses(session, open_, alias_moves),
            jobs=_past_jobs(session),
            models_needed=frozenset(
                job.result[MODEL] for job in merges if MODEL in job.result and job.plan["adapter_digest"] in merging
            ),
            in_use_since=min(began) - CLOCKS_DIFFER if began else None,
        )


def prepared_files(folder: Path) -> list[PreparedFile]:
    """The encoded data files of a cache; who reads one sets the time of one of its files."""
    return [PreparedFile(path.name, size_of(path), used_at(path)) for path in _folders(folder) if path.name[0] != "."]


def run_folders(folder: Path) -> list[str]:
    """Ids of the jobs that have a run folder."""
    return [path.name for path in _folders(folder)]


def models_that_are_bases(catalog_path: Path, storage: Storage) -> frozenset[str]:
    """Digests of the stored models that the catalogue has as bases: they are trained on and served from where they are.

    Raises:
        InvalidRequest: ``CATALOG_INVALID``.
    """
    sources = (base.source for base in load_catalog(catalog_path).bases)
    folders = {(catalog_path.parent / source.path).resolve() for source in sources if isinstance(source, LocalSource)}
    return frozenset(d for d in storage.digests("models") if storage.folder("models", d).resolve() in folders)


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder; 0 when it is not there."""
    return sum(found.st_size for found in _stats(folder))


def used_at(folder: Path) -> datetime:
    """When a file of a folder was last written, or its time set."""
    return datetime.fromtimestamp(max((found.st_mtime for found in _stats(folder)), default=0.0), UTC)


def _adapters(session: Session) -> list[StoredAdapter]:
    query = select(AdapterRow).where(AdapterRow.deleting_at.is_(None)).order_by(AdapterRow.created_at, AdapterRow.step)
    return [
        StoredAdapter(row.tenant, row.id, row.digest, row.job_id, row.step, row.final, row.created_at)
        for row in session.scalars(query)
    ]


def _uses(session: Session, open_: list[JobRow], alias_moves: int) -> Uses:
    needed, left_at = set[str](), dict[str, datetime]()
    for alias in session.scalars(select(AliasRow).where(AliasRow.adapter_id.is_not(None))):
        needed |= named_by(alias)
    seen: dict[tuple[str, str], int] = {}
    for move in session.scalars(select(AliasMoveRow).order_by(AliasMoveRow.version.desc())):
        before, after = _named(move.before), _named(move.after)
        number = seen[move.tenant, move.alias] = seen.get((move.tenant, move.alias), 0) + 1
        if number <= alias_moves:
            needed |= before | after
        for adapter_id in before - after:
            left_at[adapter_id] = max(move.moved_at, left_at.get(adapter_id, move.moved_at))
    return Uses(needed | _needed_by(session, open_), left_at)


def _needed_by(session: Session, open_: list[JobRow]) -> set[str]:
    digests = {digest for job in open_ for digest in job.progress.get(STORING, [])}
    digests |= {job.plan["adapter_digest"] for job in open_ if job.kind == Kind.MERGE and "adapter_digest" in job.plan}
    return set(session.scalars(select(AdapterRow.id).where(AdapterRow.digest.in_(digests))))


def _named(routing: object) -> set[str]:
    return set(Routing.model_validate(routing).adapters) if routing else set()


def _past_jobs(session: Session) -> list[PastJob]:
    query = select(JobRow).where(JobRow.state.in_([str(state) for state in FINAL])).order_by(JobRow.id)
    return [
        PastJob(row.id, row.finished_at, None if MODEL_DELETED in row.result else row.result.get(MODEL))
        for row in session.scalars(query)
        if row.finished_at
    ]


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _stats(folder: Path) -> Iterator[os.stat_result]:
    """Of each file below a folder that is there still."""
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield Path(path, name).lstat()

"""Stored folders that no job has to show for: it failed, was cancelled or was killed after it had stored them.

A job tells before it stores an adapter (:func:`shared.deletion.keep_for_job`), and nothing of a job that is not over is left
over. What is found is looked at once more when it is removed, while every open job's row is held, so that none begins to store
the same meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.db import Database
from shared.deletion import STORING, open_jobs
from shared.inventory import MODEL, MODEL_DELETED, used_at
from shared.job import Kind
from shared.retention import Policy, StoredFolder, leftovers_to_remove
from shared.storage import Kind as Shelf
from shared.storage import Storage
from shared.tables import AdapterRow, JobRow

logger = logging.getLogger(__name__)

SHELVES: tuple[Shelf, ...] = ("adapters", "models")


def find_leftovers(database: Database, storage: Storage, policy: Policy) -> list[tuple[Shelf, str]]:
    """Shelf and digest of what goes by the policy."""
    if policy.leftovers is None:
        return []
    stored = {
        shelf: _stored(storage, shelf) for shelf in SHELVES
    }  # before the database is read: a new one is known then
    with database.read() as session:
        now = database.now(session)
        open_ = open_jobs(session)
        known = {shelf: _known(session, shelf, open_) for shelf in SHELVES}
    return [
        (shelf, digest)
        for shelf in SHELVES
        if (needed := known[shelf]) is not None and _is_of(stored[shelf], needed, shelf)
        for digest in leftovers_to_remove(stored[shelf], needed, policy, now)
    ]


def remove_leftover(database: Database, storage: Storage, shelf: Shelf, digest: str) -> bool:
    """Remove a stored folder, unless something needs it by now; whether it was there."""
    if not storage.folder(shelf, digest).is_dir():  # a disk that hangs does so here, where no job is held
        return False
    with database.write() as session:
        known = _known(session, shelf, open_jobs(session, lock=True))
        if known is None or digest in known:
            return False
        storage.discard_folder(shelf, digest)
    storage.free_discarded()
    return True


def _stored(storage: Storage, shelf: Shelf) -> list[StoredFolder]:
    return [StoredFolder(digest, used_at(storage.folder(shelf, digest))) for digest in storage.digests(shelf)]


def _is_of(stored: Sequence[StoredFolder], known: Collection[str], shelf: Shelf) -> bool:
    """Whether the storage can be this database's: one that knows nothing of what is stored is another's, or new."""
    if not stored or any(folder.digest in known for folder in stored):
        return True
    logger.warning("retention: the database knows none of the %d stored %s, so none is left over", len(stored), shelf)
    return False


def _known(session: Session, shelf: Shelf, open_: Sequence[JobRow]) -> set[str] | None:
    """Digests that somebody has to show for, or will; None: a job is at work that does not say beforehand what it stores."""
    if shelf == "adapters":
        storing = {digest for job in open_ for digest in job.progress.get(STORING, [])}
        return storing | set(session.scalars(select(AdapterRow.digest).where(AdapterRow.deleted_at.is_(None))))
    if any(job.kind == Kind.MERGE for job in open_):
        return None
    merged = session.scalars(select(JobRow.result).where(JobRow.kind == Kind.MERGE))
    return {result[MODEL] for result in merged if MODEL in result and MODEL_DELETED not in result}

"""Stored folders that no job accounts for: the job failed, was cancelled or was killed after it had stored them.

A job reserves an adapter before it stores it (:func:`shared.database.deletions.reserve_adapters`), and no file of an
unfinished job is unreferenced. A finding is checked once more when it is removed, while every unfinished job's row is
locked, so that none begins to store the same content meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.artifacts.storage import ArtifactKind, Storage
from shared.database.connection import Database
from shared.database.deletions import STORING, open_jobs
from shared.database.records import Kind
from shared.database.tables.adapters import AdapterRow
from shared.database.tables.jobs import JobRow
from shared.retention.policy import Policy, StoredFolder, unreferenced_to_remove
from shared.retention.references import models

logger = logging.getLogger(__name__)

KINDS: tuple[ArtifactKind, ...] = ("adapters", "models")


def unreferenced_folders(database: Database, storage: Storage, policy: Policy) -> list[tuple[ArtifactKind, str]]:
    """Return kind and digest of the unreferenced folders that the policy removes."""
    if policy.unreferenced is None:
        return []
    # The storage is read before the database, which therefore knows everything stored in between.
    stored = {
        kind: [
            StoredFolder(digest, size.written_at)
            for digest in storage.digests(kind)
            if (size := storage.measure(kind, digest))
        ]
        for kind in KINDS
    }
    with database.read() as session:
        now = database.now(session)
        unfinished = open_jobs(session)
        referenced = {kind: _known_digests(session, kind, unfinished) for kind in KINDS}
    folders: list[tuple[ArtifactKind, str]] = []
    for kind in KINDS:
        digests = referenced[kind]
        if digests is None or not stored[kind]:
            continue
        # A database without any reference to the stored folders belongs to another installation, or is new.
        if not any(folder.digest in digests for folder in stored[kind]):
            logger.warning(
                "retention: the database does not contain any of the %d stored %s, so they are kept",
                len(stored[kind]),
                kind,
            )
            continue
        folders += [(kind, digest) for digest in unreferenced_to_remove(stored[kind], digests, policy, now)]
    return folders


def remove_unreferenced(database: Database, storage: Storage, kind: ArtifactKind, digest: str) -> bool:
    """Remove a stored folder, unless something needs it by now; return whether it was removed."""
    # A hanging disk blocks here, where no job's row is locked.
    if storage.measure(kind, digest) is None:
        return False
    with database.write() as session:
        referenced = _known_digests(session, kind, open_jobs(session, lock=True))
        if referenced is None or digest in referenced:
            return False
        storage.move_to_trash(kind, digest)
    # After the commit, as in `Cleanup`: other writers must not wait for the removal of files.
    storage.purge_trash()
    return True


def _known_digests(session: Session, kind: ArtifactKind, unfinished: Sequence[JobRow]) -> set[str] | None:
    """Return the digests that a job accounts for; None while a job runs that does not announce what it will store."""
    if kind == "adapters":
        reserved = {digest for job in unfinished for digest in job.progress.get(STORING, [])}
        return reserved | set(session.scalars(select(AdapterRow.digest).where(AdapterRow.deleted_at.is_(None))))
    # A merge knows its model's digest only after it has made the model.
    if any(job.kind == Kind.MERGE for job in unfinished):
        return None
    return {model.digest for model in models(session)}

"""Stored checkpoints that jobs can no longer resume from: their job is over, or its row names newer ones.

They are not results, so no rule of the policy applies: they only ever served to resume a job.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from shared.artifacts.storage import ArtifactKind, Storage
from shared.database.connection import Database
from shared.database.deletions import open_jobs

KIND: ArtifactKind = "checkpoints"
STORED_CHECKPOINTS = "stored_checkpoints"
"""Key in a job's progress: name of each stored checkpoint → its digest."""
CHECKPOINT_MANIFEST_NAME = "checkpoint_manifest.json"
YOUNG = timedelta(hours=1)
"""Age up to which a checkpoint stays, because its job's row may be about to name it."""

logger = logging.getLogger(__name__)


def remove_abandoned_checkpoints(database: Database, storage: Storage) -> list[str]:
    """Remove the stored checkpoints that no unfinished job's row names; return their digests."""
    # The storage is read before the database, which therefore knows every reference created in between.
    sizes = {digest: storage.measure(KIND, digest) for digest in storage.digests(KIND)}
    with database.read() as session:
        jobs = open_jobs(session)
        needed = {digest for job in jobs for digest in job.progress.get(STORED_CHECKPOINTS, {}).values()}
    old = datetime.now(UTC) - YOUNG
    abandoned = [digest for digest, size in sizes.items() if size and size.written_at < old and digest not in needed]
    for digest in abandoned:
        storage.move_to_trash(KIND, digest)
    if abandoned:
        logger.info("retention: %d stored checkpoints that no job needs", len(abandoned))
        storage.purge_trash()
    return abandoned

"""Carries out deletions of adapters, round by round: first the storage, then every serving replica, then folder and record.

A round does everything that is possible now and leaves the rest to the next one. A round that is killed at any point is
completed by the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from shared.artifacts.manifests import MANIFEST_NAME
from shared.artifacts.open_storage import open_storage
from shared.artifacts.storage import Storage
from shared.database.connection import Database
from shared.database.deletions import Deletions, DeletionStep, PendingDeletion
from shared.errors import Code, MensError, Unavailable
from shared.replicas import discover
from worker.replica_client import BlockingReplicaClient
from worker.settings import WorkerSettings

REQUEST_SECONDS = 10.0
MAX_PARALLEL_REPLICAS = 16
MAX_DELETIONS_PER_ROUND = 200
ROUND_SECONDS = 20.0
"""Time limit for all requests to one replica in a round, so that the round soon acts on confirmed unloads and notices
new deletions.
"""

logger = logging.getLogger(__name__)


class UnloadOutcome(Enum):
    """Result of one request to a replica to unload an adapter."""

    UNLOADED = auto()
    DRAINING = auto()
    """Requests are still in flight."""
    FAILED = auto()
    """The replica cannot be reached, or cannot unload it."""


Outcomes = dict[str, UnloadOutcome]
"""One replica's outcomes by adapter id; for a missing adapter, no request was sent in this round."""


@dataclass(frozen=True)
class AdapterRemover:
    """Carries out pending deletions."""

    settings: WorkerSettings
    deletions: Deletions
    storage: Storage

    def run_round(self) -> list[str]:
        """Advance every pending deletion as far as possible now.

        Returns:
            ids of the adapters whose deletion is now complete.

        Raises:
            Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        unpublished = [
            deletion
            for deletion in self.deletions.pending(MAX_DELETIONS_PER_ROUND)
            if self._carry_out(
                self.deletions.unpublish,
                deletion,
                partial(self.storage.unpublish, "adapters", deletion.digest, MANIFEST_NAME),
            )
        ]
        if not unpublished:
            return []
        # Requested only now, because a replica that finds the manifest in the storage refuses to unload.
        outcomes = self._unload_everywhere([deletion.id for deletion in unpublished])
        deleted = [
            deletion.id
            for deletion in unpublished
            if self._is_unloaded(deletion, outcomes)
            and self._carry_out(
                self.deletions.finish,
                deletion,
                partial(self.storage.move_to_trash, "adapters", deletion.digest),
            )
        ]
        for adapter_id in deleted:
            logger.info("%s is deleted", adapter_id)
        self.storage.purge_trash()
        return deleted

    def _carry_out(
        self,
        step: Callable[[PendingDeletion, Callable[[], None]], DeletionStep],
        deletion: PendingDeletion,
        change: Callable[[], None],
    ) -> bool:
        """Carry out a deletion's step in the storage; return whether the deletion continues."""
        try:
            return step(deletion, change) is DeletionStep.ALONE
        except (OSError, Unavailable) as error:
            if isinstance(error, Unavailable) and error.code is Code.DATABASE_UNAVAILABLE:
                raise
            logger.exception("%s: the storage could not be changed", deletion.id)
            return False

    def _unload_everywhere(self, ids: Sequence[str]) -> list[Outcomes] | None:
        """Return the outcomes of every replica; None while their addresses are unknown."""
        try:
            urls = discover(self.settings.serving_urls, self.settings.serving_dns)
        except Unavailable as error:
            logger.warning("%s", error)
            return None
        if not urls:
            return []
        # In parallel, because a replica that does not answer would delay the unloading on all others.
        with ThreadPoolExecutor(min(len(urls), MAX_PARALLEL_REPLICAS)) as pool:
            return list(pool.map(lambda url: self._unload_from(url, ids), urls))

    def _unload_from(self, url: str, ids: Sequence[str]) -> Outcomes:
        outcomes: Outcomes = {}
        deadline = time.monotonic() + ROUND_SECONDS
        with BlockingReplicaClient(url, self.settings.serving_key.get_secret_value(), REQUEST_SECONDS) as replica:
            for adapter_id in ids:
                if time.monotonic() > deadline:
                    # The rest is done in the next round: this thread belongs to all control tasks.
                    break
                try:
                    progress = replica.unload(adapter_id, self.settings.drain_seconds)
                except Unavailable as error:
                    logger.warning("%s: %s", replica.url, error)
                    # The other requests would get no response either.
                    return dict.fromkeys(ids, UnloadOutcome.FAILED) | outcomes
                except MensError as error:
                    logger.warning("%s does not unload %s: %s", replica.url, adapter_id, error)
                    outcomes[adapter_id] = UnloadOutcome.FAILED
                else:
                    unloaded = progress.state == "unloaded"
                    outcomes[adapter_id] = UnloadOutcome.UNLOADED if unloaded else UnloadOutcome.DRAINING
        return outcomes

    def _is_unloaded(self, deletion: PendingDeletion, outcomes: list[Outcomes] | None) -> bool:
        """Return whether every replica has confirmed the unload.

        After the patience time, a replica that does not respond is no longer waited for: it removes its copy when it
        starts again, and needs nothing from the storage until then.
        """
        is_late = deletion.seconds >= self.settings.unload_patience_seconds
        if outcomes is None:
            return is_late
        accepted = {UnloadOutcome.UNLOADED, UnloadOutcome.FAILED} if is_late else {UnloadOutcome.UNLOADED}
        return all(replica_outcomes.get(deletion.id) in accepted for replica_outcomes in outcomes)


def make_adapter_remover(settings: WorkerSettings) -> AdapterRemover:
    """Return the remover on the configured database and storage."""
    return AdapterRemover(settings, Deletions(Database(settings.database_url)), open_storage(settings))

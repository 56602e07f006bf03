"""Carries deletions out, round by round: the storage first, then every serving replica, then the folder and the record.

A round does what can be done now and leaves the rest to the next; one that is killed anywhere is completed by it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import quote

import httpx

from shared.db import Database
from shared.deletion import Deletions, Doomed, Standing
from shared.errors import Unavailable
from shared.manifest import MANIFEST_NAME
from shared.replicas import discover
from shared.storage import Storage
from worker.settings import WorkerSettings

TIMEOUT = httpx.Timeout(10.0, connect=3.0)
MOST_REPLICAS_AT_ONCE = 16
MOST_IN_A_ROUND = 200
ROUND_SECONDS = 20.0
"""How long one replica is asked: what has been answered is acted upon meanwhile, and new deletions are seen."""

logger = logging.getLogger(__name__)


class Answer(Enum):
    """What a replica says of an adapter that it was asked to unload."""

    UNLOADED = auto()
    DRAINING = auto()
    """Requests are under way still."""
    NONE = auto()
    """It cannot be reached, or cannot do it."""


Answers = dict[str, Answer]
"""A replica's, by adapter id; one that is missing was not asked for in this round."""


@dataclass(frozen=True)
class Removal:
    """Whoever carries deletions out."""

    settings: WorkerSettings
    deletions: Deletions
    storage: Storage

    def round(self) -> list[str]:
        """Take every deletion as far as it goes now; ids of those that are at their end.

        Raises:
            Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        going = [doomed for doomed in self.deletions.pending(MOST_IN_A_ROUND) if self._withdraw(doomed)]
        if not going:
            return []
        answers = self._ask_replicas(going)
        gone = [doomed.id for doomed in going if self._is_unloaded(doomed, answers) and self._finish(doomed)]
        self.storage.free_discarded()
        return gone

    def _withdraw(self, doomed: Doomed) -> bool:
        try:
            standing = self.deletions.withdraw(
                doomed, lambda: self.storage.withdraw("adapters", doomed.digest, MANIFEST_NAME)
            )
        except OSError:
            logger.exception("%s could not be withdrawn", doomed.id)
            return False
        return standing is Standing.ALONE

    def _finish(self, doomed: Doomed) -> bool:
        try:
            standing = self.deletions.finish(doomed, lambda: self.storage.discard_folder("adapters", doomed.digest))
        except OSError:
            logger.exception("the folder of %s could not be removed", doomed.id)
            return False
        logger.info("%s is deleted", doomed.id)
        return standing is Standing.ALONE

    def _ask_replicas(self, going: Sequence[Doomed]) -> list[Answers] | None:
        """Each replica's answers; None while nobody knows where they are."""
        try:
            urls = discover(self.settings.serving_urls, self.settings.serving_dns)
        except Unavailable as error:
            logger.warning("%s", error)
            return None
        if not urls:
            return []
        ids = [doomed.id for doomed in going]
        with ThreadPoolExecutor(min(len(urls), MOST_REPLICAS_AT_ONCE)) as pool:
            return list(pool.map(lambda url: self._ask(url, ids), urls))

    def _ask(self, url: str, ids: Sequence[str]) -> Answers:
        key = self.settings.serving_key.get_secret_value()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answers: Answers = {}
        deadline = time.monotonic() + ROUND_SECONDS
        with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT, trust_env=False) as client:
            for adapter_id in ids:
                if time.monotonic() > deadline:
                    break
                try:
                    answers[adapter_id] = self._unload(client, adapter_id)
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    logger.warning("the replica %s does not answer: %s", url, error or type(error).__name__)
                    return dict.fromkeys(ids, Answer.NONE) | answers  # it would not for the others either
        return answers

    def _unload(self, client: httpx.Client, adapter_id: str) -> Answer:
        query = {"drain_seconds": self.settings.drain_seconds}
        response = client.delete(f"/mens/adapters/{quote(adapter_id, safe='')}", params=query)
        if response.status_code in (200, 202):
            return Answer.UNLOADED if response.status_code == 200 else Answer.DRAINING
        logger.warning("%s does not unload %s: %s", client.base_url, adapter_id, response.text[:300])
        return Answer.NONE

    def _is_unloaded(self, doomed: Doomed, answers: list[Answers] | None) -> bool:
        """Whether every replica has confirmed.

        After long, one that does not answer counts no more: it removes its copy when it starts again, and until then it
        needs nothing of what the storage has.
        """
        late = doomed.seconds >= self.settings.unload_patience_seconds
        if answers is None:
            return late
        wanted = {Answer.UNLOADED, Answer.NONE} if late else {Answer.UNLOADED}
        return all(found.get(doomed.id) in wanted for found in answers)


def make_removal(settings: WorkerSettings) -> Removal:
    """The removal on the configured database and storage."""
    return Removal(settings, Deletions(Database(settings.database_url)), Storage(settings.storage_dir))

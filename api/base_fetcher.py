"""Fetches the catalogue's bases (hub models and merged models) in the background, for an API that shares no folder with
the other tiers.

A job is checked against its base's config, tokenizer and tensor headers, so the API needs the files; a request never waits for a download.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from shared.artifacts.base_folders import is_elsewhere, locate_base
from shared.base_models.catalog import BaseModelEntry, Catalog, HubSource
from shared.errors import MensError
from shared.settings import Settings

POLL_SECONDS = 60.0
"""Seconds between two searches of the catalogue for bases that are new or that could not be fetched before."""

logger = logging.getLogger(__name__)


class BaseFetcher:
    """A thread that fetches the bases one after the other.

    Args:
        catalog: reads the current catalogue.
        settings: contain the locations of the catalogue and of this machine's folders.
    """

    def __init__(self, catalog: Callable[[], Catalog], settings: Settings) -> None:
        self._catalog = catalog
        self._settings = settings
        self._fetched: set[str] = set()
        self._done = threading.Event()
        # A daemon, because a download cannot be cut short.
        self._thread = threading.Thread(target=self._run, name="base-fetcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Do not start further downloads."""
        self._done.set()

    def fetch_missing(self) -> None:
        """Fetch every base of the catalogue that this machine lacks; failed downloads are retried in the next round."""
        for base in self._catalog().bases:
            if self._done.is_set():
                return
            if base.digest in self._fetched:
                continue
            if isinstance(base.source, HubSource) or is_elsewhere(base, self._settings.catalog_path):
                self._fetch(base)

    def _fetch(self, base: BaseModelEntry) -> None:
        try:
            locate_base(base, self._settings)
        except MensError as error:
            logger.warning("the base %s could not be fetched: %s", base.name, error)
            return
        self._fetched.add(base.digest)
        logger.info("the base %s is fetched", base.name)

    def _run(self) -> None:
        while not self._done.is_set():
            try:
                self.fetch_missing()
            except Exception:
                # For example, the catalogue is being written.
                logger.exception("the catalogue could not be checked; the check is repeated")
            self._done.wait(POLL_SECONDS)

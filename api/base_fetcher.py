"""Fetches the catalogue's hub models in the background, for an API that shares no hub cache with the other tiers.

A job is checked against its base's config, tokenizer and tensor headers, so the API needs the files; a request never waits for a download.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from shared.base_models.catalog import BaseModelEntry, Catalog, HubSource
from shared.base_models.hub import locate
from shared.errors import MensError

POLL_SECONDS = 60.0
"""How often the catalogue is looked through for bases that are new, or that could not be fetched before."""

logger = logging.getLogger(__name__)


class BaseFetcher:
    """One thread, which fetches one base after the other.

    Args:
        catalog: reads the catalogue as it is now.
        catalog_path: where the catalogue is.
    """

    def __init__(self, catalog: Callable[[], Catalog], catalog_path: Path) -> None:
        self._catalog = catalog
        self._catalog_path = catalog_path
        self._fetched: set[str] = set()
        self._done = threading.Event()
        # A daemon, because a download cannot be cut short.
        self._thread = threading.Thread(target=self._run, name="base-fetcher", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Begin no other download."""
        self._done.set()

    def fetch_missing(self) -> None:
        """Fetch every hub model of the catalogue that was not fetched yet; what fails is tried again in the next round."""
        for base in self._catalog().bases:
            if self._done.is_set():
                return
            if isinstance(base.source, HubSource) and base.digest not in self._fetched:
                self._fetch(base)

    def _fetch(self, base: BaseModelEntry) -> None:
        try:
            locate(base, self._catalog_path)
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
                # E.g. a catalogue that is being written.
                logger.exception("the catalogue could not be looked through; it is tried again")
            self._done.wait(POLL_SECONDS)

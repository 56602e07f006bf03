"""What every request to a model has to know, kept in memory: whose a key is, what answers behind a name, which bases there are.

Nothing that this process has changed is ever answered from memory, and what another process has changed for
`POLL_SECONDS` at most: the database counts the changes (`shared/changes.py`), and all is forgotten when the count has moved.
While the database is silent, what was known when it last answered goes on being served for `SILENCE_SECONDS`.
Only what is there is kept: an unknown key or name is looked up each time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from fastapi.concurrency import run_in_threadpool

from shared.aliases import Aliases
from shared.catalog import Catalog, load_catalog
from shared.changes import Changes
from shared.db import Database
from shared.errors import MensError, NotFound
from shared.keys import Key, Keys
from shared.registry import Registry
from shared.routing import Routing

POLL_SECONDS = 0.2
"""Between two looks at the count; with the query, well under the quarter of a second that is promised."""
LOOK_SECONDS = 2.0
"""How long one look may take before the database counts as silent."""
SILENCE_SECONDS = 60.0
FORGET_SECONDS = 10.0
"""Nothing is kept for longer: who does not count its changes (the release before, a person with SQL) is heard of, too."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Known:
    """What was read since one count. Who was still reading when it was replaced adds to what nobody looks at any more."""

    keys: dict[bytes, Key] = field(default_factory=dict)
    routings: dict[tuple[str, str], Routing] = field(default_factory=dict)


class Directory:
    """Keys and names of one installation, as one process knows them. Used in one event loop at a time.

    Args:
        database: asked for what is not known yet; its write blocks are heard of.
        catalog_path: the catalogue of base models; read again when the file is another.
    """

    def __init__(self, database: Database, catalog_path: Path) -> None:
        self._keys, self._registry, self._aliases = Keys(database), Registry(database), Aliases(database)
        self._changes = Changes(database)
        self._catalog_path = str(catalog_path)
        self._catalog: tuple[object, Catalog] = (None, Catalog())
        self._bases: frozenset[str] = frozenset()
        self._bases_read_at = -POLL_SECONDS
        self._known = Known()
        self._count: int | None = None
        self._writes = self._settled = 0
        self._answered_at = -SILENCE_SECONDS
        self._forgot_at = 0.0
        self._is_silent = False
        self._looking = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None
        self._counting = threading.Lock()
        database.after_write.append(self._wrote)

    async def authenticate(self, secret: str) -> Key:
        """The key of a secret.

        Raises:
            Unauthenticated: ``KEY_INVALID``: unknown or revoked. Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        known = await self._current()
        digest = hashlib.blake2b(
            secret.encode(), digest_size=32
        ).digest()  # no secret is kept; and quicker than OpenSSL's
        if (key := known.keys.get(digest)) is None:
            key = known.keys[digest] = await run_in_threadpool(self._keys.authenticate, secret)
        return key

    async def find(self, tenant: str, name: str) -> Routing | None:
        """What answers when a tenant asks for a name: an alias's routing, or a published adapter; None: there is neither.

        Raises:
            Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        known = await self._current()
        routing = known.routings.get((tenant, name))
        if routing is None and (routing := await run_in_threadpool(self._read, tenant, name)):
            known.routings[tenant, name] = routing
        return routing

    def is_base(self, name: str) -> bool:
        """Whether a base of the catalogue has a name, as of `POLL_SECONDS` ago at most.

        Raises:
            InvalidRequest: ``CATALOG_INVALID``.
        """
        now = time.monotonic()
        if now - self._bases_read_at >= POLL_SECONDS:
            self._bases = frozenset(base.name for base in self.catalog().bases)
            self._bases_read_at = now
        return name in self._bases

    def catalog(self) -> Catalog:
        """The catalogue as it is now; bases may be added while the API runs.

        Raises:
            InvalidRequest: ``CATALOG_INVALID``.
        """
        stamp, catalog = self._catalog
        now = _stamp(self._catalog_path)
        if now != stamp:
            catalog = load_catalog(Path(self._catalog_path))
            self._catalog = (now, catalog)
        return catalog

    def expect_change(self) -> None:
        """Have the next request look at the count first: its caller has just been told of a change of another process."""
        self._wrote()

    def start(self) -> None:
        """Begin to look at the count in the running loop; where that has begun, nothing happens."""
        if self._polling is None or self._polling.done():
            self._looking = asyncio.Lock()
            self._thread = ThreadPoolExecutor(1, "directory")  # its own: a look that hangs takes nobody else's
            self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        """Look no more."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, tenant: str, name: str) -> Routing | None:
        if alias := self._aliases.of(tenant).find(name):
            return alias
        try:
            adapter = self._registry.of(tenant).adapter(name)
        except NotFound:
            return None
        return Routing.to(adapter.id) if adapter.published else None

    async def _current(self) -> Known:
        """What may be answered from, and added to."""
        if self._polling is None or self._polling.done():
            self.start()  # where nobody ran the application's lifespan
        writes = self._writes
        while self._settled < writes:
            await self._look(writes)
        is_fresh = time.monotonic() - self._answered_at < SILENCE_SECONDS
        return self._known if is_fresh else Known()

    def _wrote(self) -> None:
        """A transaction of this process has ended, and may have changed what is known. Called in its thread."""
        with self._counting:
            self._writes += 1

    async def _poll(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self, wanted: int | None = None) -> None:
        """Read the count; forget everything when it has moved, or when it cannot be read after a write of this process.

        Args:
            wanted: the write that has to be heard of; when somebody has looked for it meanwhile, nobody has to again.
        """
        async with self._looking:
            if wanted is not None and self._settled >= wanted:
                return
            writes, began = self._writes, time.monotonic()
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    count = await asyncio.get_running_loop().run_in_executor(self._thread, self._changes.count)
            except Exception as error:  # a poll that ends is worse than a look that failed
                self._has_failed(error, wrote=writes > self._settled)
            else:
                self._has_answered(count, began)
            self._settled = writes

    def _has_answered(self, count: int, began: float) -> None:
        if count != self._count or began - self._forgot_at >= FORGET_SECONDS:
            self._count, self._known, self._forgot_at = count, Known(), began
        if self._is_silent:
            logger.warning("the database answers again")
        self._answered_at, self._is_silent = began, False

    def _has_failed(self, error: Exception, *, wrote: bool) -> None:
        if wrote:
            self._known = Known()
        if not self._is_silent:
            reason = error.message if isinstance(error, MensError) else f"{type(error).__name__} {error}"
            logger.warning("the database is silent; known keys and names hold for %g s: %s", SILENCE_SECONDS, reason)
        self._is_silent = True


def _stamp(path: str) -> object:
    """Another one when the file is replaced or written to; None: there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116, at every request
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size

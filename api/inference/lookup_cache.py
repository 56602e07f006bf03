"""Lookup cache: keeps API keys, model names and base models in memory, since every model request needs them.

A change by this process is visible at once, a change by another process after at most `POLL_SECONDS`: the database
counts the changes (`shared/database/change_counter.py`), and the whole cache is emptied when the counter has moved.
While the database does not respond, entries cached at its last response stay in use for `OUTAGE_SECONDS`. Only existing
keys and names are cached: an unknown one is looked up each time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from fastapi.concurrency import run_in_threadpool

from api.inference.replicas.served_models import ServedModels
from shared.base_models.catalog import Catalog, load_catalog
from shared.database.adapters import Adapters
from shared.database.base_certificates import BaseCertificate, BaseCertificates, refuse_uncertified
from shared.database.callers.key_records import Key
from shared.database.callers.key_secrets import AcceptedSecret, expired
from shared.database.callers.keys import Keys
from shared.database.callers.sign_ins import SIGN_IN_ID, SignInHalves, SignIns, sign_in_ended
from shared.database.change_counter import Changes
from shared.database.connection import Database
from shared.database.names.aliases import Aliases
from shared.database.names.foreign_names import ForeignNames
from shared.database.routing import Destination, Routing
from shared.errors import MensError, NotFound, Unavailable

POLL_SECONDS = 0.2
"""Seconds between two reads of the counter; with the query, well under the quarter of a second that the documentation
promises."""
READ_SECONDS = 2.0
"""How long one read of the counter may take before the database counts as unresponsive."""
# While the database is down, a revoked key is still accepted for as long as this.
OUTAGE_SECONDS = 60.0
MAX_AGE_SECONDS = 10.0
"""Longest age of cached entries. After this time even changes become visible that their writer did not count, such as
those by the previous release or by a person with SQL.
"""
MAX_KNOWN_KEYS = 100_000
MAX_RENDERED_BYTES = 32 << 20
"""Largest number of bytes of rendered lists that are kept; further lists are rendered for each request."""
USE_SECONDS = 60.0
"""Seconds between two writes of the times at which keys were last used."""

logger = logging.getLogger(__name__)
now_seconds = time.time
"""The clock that decides when secrets expire."""
AUTHENTICATED = "mens.authenticated"
"""Key in the ASGI scope under which the request guard stores :class:`Authenticated`."""


Secret = str | SignInHalves
"""Secret of a request: the secret of its key, or both halves of a sign-in."""


class Authenticated(NamedTuple):
    """A request's key.

    Attributes:
        secret: the secret that the request authenticated with, so that a long response can check it again.
    """

    key: Key
    secret: Secret


@dataclass(slots=True, frozen=True)
class CacheGeneration:
    """Entries that were read at one value of the change counter.

    A lookup that is in flight when the generation is replaced adds to the old one, which is no longer used.
    """

    keys: dict[bytes, Key] = field(default_factory=dict)
    ends: dict[bytes, datetime] = field(default_factory=dict)
    """Expiry of accepted secrets, for those that have one."""
    sign_ins: dict[bytes, AcceptedSecret] = field(default_factory=dict)
    """The sign-ins that secrets are halves of."""
    accepting: dict[bytes, asyncio.Future[AcceptedSecret]] = field(default_factory=dict)
    """Lookups of secrets that are in flight."""
    destinations: dict[tuple[str, str], Destination] = field(default_factory=dict)
    certificates: dict[str, list[BaseCertificate]] = field(default_factory=dict)
    rendered: dict[Hashable, bytes] = field(default_factory=dict)


class LookupCache:
    """Keys and names of one installation, cached in one process. Used in one event loop at a time.

    Args:
        database: read for missing entries; its writes invalidate the cache.
        catalog_path: the catalogue of base models; read again after the file has changed.

    Attributes:
        served: models that were looked up, with their bases.
    """

    def __init__(self, database: Database, catalog_path: Path) -> None:
        self._keys, self._adapters, self._aliases = Keys(database), Adapters(database), Aliases(database)
        self._sign_ins = SignIns(database)
        self._foreign_names = ForeignNames(database)
        self._base_certificates = BaseCertificates(database)
        self._changes = Changes(database)
        self._catalog_path = str(catalog_path)
        self._catalog: tuple[object, Catalog] = (None, Catalog())
        self.served = ServedModels()
        self._bases_read_at = -POLL_SECONDS
        self._cached = CacheGeneration()
        self._accepted: set[bytes] = set()
        self._used: dict[str, float] = {}
        self._use_written_at = time.monotonic()
        self._cached_at = 0.0
        self._count: int | None = None
        self._writes = self._writes_seen = 0
        self._answered_at = -OUTAGE_SECONDS
        self._is_down = False
        # All requests that wait for the counter, or for a list, share one reading or rendering of it.
        self._refreshing = asyncio.Lock()
        self._rendering = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None
        # `invalidate` is called by the threads that write.
        self._counting = threading.Lock()
        database.after_write.append(self.invalidate)

    async def authenticate(self, secret: Secret) -> Key:
        """Return the key of a secret."""
        cached = await self._current()
        digest = _digest(secret)
        if (key := cached.keys.get(digest)) is None:
            # The entry is absent until the lookup has found it again, because it may have been revoked since.
            self._accepted.discard(digest)
            accepted = await self._shared_acceptance(cached, digest, secret)
            key = cached.keys[digest] = accepted.key
            if accepted.until is not None:
                cached.ends[digest] = accepted.until
            if accepted.sign_in_id is not None:
                cached.sign_ins[digest] = accepted
            if len(self._accepted) >= MAX_KNOWN_KEYS:
                # This happens so rarely that keeping an order of use would cost more. Afterwards the next lookup of
                # each key counts as the lookup of an unknown key.
                self._accepted.clear()
            self._accepted.add(digest)
        now = now_seconds()
        if (until := cached.ends.get(digest)) is not None and now >= until.timestamp():
            raise expired(key, until) if isinstance(secret, str) else sign_in_ended()
        self._used[key.id] = now
        if (sign_in := cached.sign_ins.get(digest)) is not None and sign_in.sign_in_id:
            self._used[sign_in.sign_in_id] = now
        return key

    async def sign_in_end(self, halves: SignInHalves) -> datetime | None:
        """Return when a sign-in that :meth:`authenticate` has accepted ends even if it is used."""
        cached, digest = await self._current(), _digest(halves)
        accepted = cached.sign_ins.get(digest) or await self._shared_acceptance(cached, digest, halves)
        return accepted.sign_in_ends

    def known_key(self, secret: Secret) -> Key | None:
        """Return the key of a secret, or None if the caller must wait for :meth:`authenticate`."""
        is_polled = self._polling is not None and not self._polling.done()
        if not is_polled or self._writes_seen < self._writes:
            return None
        is_usable = time.monotonic() - self._answered_at < OUTAGE_SECONDS
        digest = _digest(secret)
        key, now = self._cached.keys.get(digest), now_seconds()
        if key is None or not is_usable:
            return None
        if (until := self._cached.ends.get(digest)) is not None and now >= until.timestamp():
            return None
        self._used[key.id] = now
        if (sign_in := self._cached.sign_ins.get(digest)) is not None and sign_in.sign_in_id:
            self._used[sign_in.sign_in_id] = now
        return key

    async def recheck(self, secret: Secret) -> None:
        """Check an accepted secret again, from memory if nothing has changed. It stays accepted while the database is
        unavailable.
        """
        if self.known_key(secret) is None and not self._is_down:
            with suppress(Unavailable):
                await self.authenticate(secret)

    def has_accepted(self, secret: Secret) -> bool:
        """Return whether the last lookup of a secret found its key, however long ago; such a secret is not a guess."""
        return _digest(secret) in self._accepted

    async def find(self, tenant: str, name: str) -> Destination | None:
        """Return the destination of a name as a tenant sees it: an alias, a published adapter or a foreign name; None
        if unknown.
        """
        cached = await self._current()
        destination = cached.destinations.get((tenant, name))
        if destination is None and (destination := await run_in_threadpool(self._read_destination, tenant, name)):
            cached.destinations[tenant, name] = destination
        return destination

    def is_base(self, name: str) -> bool:
        """Return whether the catalogue has a base of this name, as of at most `POLL_SECONDS` ago."""
        now = time.monotonic()
        if now - self._bases_read_at >= POLL_SECONDS:
            self.served.set_bases(self.catalog())
            self._bases_read_at = now
        return self.served.is_base(name)

    async def check_offered(self, base: str) -> None:
        """Refuse a merged model that no replica was measured with, or that failed on one. Others are always offered."""
        if (digest := self.served.merged_digest(base)) is None:
            return
        cached = await self._current()
        certificates = cached.certificates.get(digest)
        if certificates is None:
            certificates = cached.certificates[digest] = await run_in_threadpool(self._base_certificates.of, digest)
        refuse_uncertified(base, certificates)

    async def rendered(self, what: Hashable, render: Callable[[], bytes]) -> bytes:
        """Return a list of names or adapters, which is rendered once for all requests until one of them changes.

        Args:
            what: identifies the list.
            render: reads and renders it, in a thread; one list at a time, so that the memory is bounded.
        """
        cached = await self._current()
        if (body := cached.rendered.get(what)) is not None:
            return body
        async with self._rendering:
            # Look again: another request may have rendered it while this one waited for its turn.
            cached = await self._current()
            if (body := cached.rendered.get(what)) is None:
                body = await run_in_threadpool(render)
                if sum(map(len, cached.rendered.values())) + len(body) <= MAX_RENDERED_BYTES:
                    cached.rendered[what] = body
        return body

    def catalog(self) -> Catalog:
        """Return the current catalogue; bases may be added while the API runs."""
        try:
            status = os.stat(self._catalog_path)  # noqa: PTH116, at every request
            # With the inode, because a catalogue that was replaced within the clock's resolution may have the same
            # size.
            stamp: object = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:
            stamp = None
        cached_stamp, catalog = self._catalog
        if stamp != cached_stamp:
            catalog = load_catalog(Path(self._catalog_path))
            self._catalog = (stamp, catalog)
        return catalog

    def invalidate(self) -> None:
        """Make the next lookup read the counter first.

        Called after each write of this process, in the writer's thread; and for a caller who has just learned of a
        change by another process.
        """
        with self._counting:
            # Writers are threads, whose additions could otherwise count as one.
            self._writes += 1

    def start(self) -> None:
        """Start polling the counter in the running loop; the second call does nothing."""
        if self._polling is None or self._polling.done():
            # A lock belongs to the loop in which it was first waited for, and this may be another one.
            self._refreshing, self._rendering = asyncio.Lock(), asyncio.Lock()
            # In a separate thread, so that a read that hangs blocks no thread of the pool.
            self._thread = ThreadPoolExecutor(1, "lookup-cache")
            self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        """End the polling."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
            await self._write_use()
            # The thread is not joined, because its last read may hang.
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _shared_acceptance(self, cached: CacheGeneration, digest: bytes, secret: Secret) -> AcceptedSecret:
        """Look a secret up once for all concurrent callers; when the cache has been emptied, each open stream is such a
        caller.
        """

        def forget(lookup: asyncio.Future[AcceptedSecret]) -> None:
            # Only concurrent callers share a lookup: its failure must not be remembered.
            del cached.accepting[digest]
            if not lookup.cancelled():
                lookup.exception()  # read, so that asyncio does not log the error of a lookup whose callers have all left

        accepting = cached.accepting.get(digest)
        if accepting is None:
            accepting = asyncio.ensure_future(run_in_threadpool(self._accept, secret))
            cached.accepting[digest] = accepting
            accepting.add_done_callback(forget)
        # Shielded: a caller that leaves must not cancel the lookup that others wait for.
        return await asyncio.shield(accepting)

    def _accept(self, secret: Secret) -> AcceptedSecret:
        return self._keys.accept(secret) if isinstance(secret, str) else self._sign_ins.accept(secret)

    def _record_use(self, used: dict[str, datetime]) -> None:
        sign_ins = {id_: at for id_, at in used.items() if id_.startswith(f"{SIGN_IN_ID}-")}
        self._keys.record_use({id_: at for id_, at in used.items() if id_ not in sign_ins})
        if sign_ins:
            self._sign_ins.record_use(sign_ins)

    def _read_destination(self, tenant: str, name: str) -> Destination | None:
        destination = self._read_name(tenant, name)
        if destination and destination.routing:
            self.served.learn(destination.routing.adapters, self._adapters.of(tenant))
        return destination

    def _read_name(self, tenant: str, name: str) -> Destination | None:
        if alias := self._aliases.of(tenant).find(name):
            return Destination(name, alias)
        try:
            adapter = self._adapters.of(tenant).get(name)
        except NotFound:
            return self._foreign_names.of(tenant).resolve(name)
        return Destination(name, Routing.to(adapter.id)) if adapter.published else None

    async def _current(self) -> CacheGeneration:
        """Return the generation to read from and to add to, which includes every write so far."""
        if self._polling is None or self._polling.done():
            self.start()  # in case the application's lifespan was not run
        writes = self._writes
        while self._writes_seen < writes:
            await self._refresh(writes)
        is_usable = time.monotonic() - self._answered_at < OUTAGE_SECONDS
        return self._cached if is_usable else CacheGeneration()

    async def _poll(self) -> None:
        while True:
            await self._refresh()
            if time.monotonic() - self._use_written_at >= USE_SECONDS:
                await self._write_use()
            await asyncio.sleep(POLL_SECONDS)

    async def _write_use(self) -> None:
        """Store the times at which keys and sign-ins were last used: users see a key's, and an idle sign-in expires.
        Times that cannot be stored now are stored the next time.
        """
        self._use_written_at = time.monotonic()
        used, self._used = self._used, {}
        if not used or self._is_down:
            self._used = used | self._used
            return
        moments = {id_: datetime.fromtimestamp(at, UTC) for id_, at in used.items()}
        try:
            async with asyncio.timeout(READ_SECONDS):
                await run_in_threadpool(self._record_use, moments)
        except Exception as error:  # as with the counter: the poll must continue
            logger.warning("the times of the keys' last use were not stored: %s: %s", type(error).__name__, error)
            # In this order, because the times that were noted meanwhile are the newer ones.
            self._used = used | self._used

    async def _refresh(self, least_writes: int | None = None) -> None:
        """Read the counter; empty the cache if it has moved, or if it cannot be read after a write of this process.

        Args:
            least_writes: the write that must be seen. If another refresh has seen it meanwhile, this one does nothing.
        """
        async with self._refreshing:
            if least_writes is not None and self._writes_seen >= least_writes:
                return
            # Both values are taken before the read, whose result does not cover a write or a lookup during the read.
            writes, began = self._writes, time.monotonic()
            try:
                async with asyncio.timeout(READ_SECONDS):
                    count = await asyncio.get_running_loop().run_in_executor(self._thread, self._changes.count)
            except Exception as error:  # the poll must continue, whatever went wrong with one read
                if writes > self._writes_seen:
                    self._cached = CacheGeneration()
                if not self._is_down:
                    reason = error.message if isinstance(error, MensError) else f"{type(error).__name__} {error}"
                    logger.warning(
                        "the database does not respond; cached keys and names stay valid for %g s: %s",
                        OUTAGE_SECONDS,
                        reason,
                    )
                self._is_down = True
            else:
                if count != self._count or began - self._cached_at >= MAX_AGE_SECONDS:
                    self._count, self._cached, self._cached_at = count, CacheGeneration(), began
                if self._is_down:
                    logger.warning("the database responds again")
                self._answered_at, self._is_down = began, False
            # Also after a failure, which has emptied the cache: no lookup can find a value from before the write.
            self._writes_seen = writes


def _digest(secret: Secret) -> bytes:
    """Hash a secret for storage. BLAKE2 is faster here than OpenSSL's functions."""
    if isinstance(secret, str):
        return hashlib.blake2b(secret.encode(), digest_size=32).digest()
    # The two halves are hashed separately, so that a key's secret cannot have the same hash.
    halves = hashlib.blake2b(secret.cookie.encode(), digest_size=32).digest()
    return hashlib.blake2b(halves + secret.token.encode(), digest_size=32, person=b"sign-in").digest()

"""Reports on files, made in the background and kept by the inputs that determine them: content, base, length and
method.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from api.data_view.types import ReportMade
from shared.errors import Code, TooMany

KEPT = 64
"""Number of reports that are kept, including errors of reports that could not be made."""
FAILURE_SECONDS = 60.0
"""Time for which an error is kept for a caller that asks again; after it, the report is made again."""
# Each report keeps a processor busy, which chats need too.
MADE_AT_ONCE = 2
# A tenant's share is smaller, so that one tenant cannot fill the queue for all.
WAITING, WAITING_OF_A_TENANT = 16, 2
FIRST_WAIT_SECONDS = 1.0
"""Time that the first request waits: reports on small files are ready within it, so most callers need not ask twice."""


class ReportKey(NamedTuple):
    """Identity of a report. ``sha256`` is the file's digest; ``base`` is the base's digest, empty without a base."""

    sha256: str
    base: str
    seq_len: int | None
    method: str | None


class _Failure(NamedTuple):
    """An error for the next caller, and the time at which it occurred."""

    error: Exception
    since: float


class FileReports:
    """Reports that are kept or being made. Safe to call from many threads."""

    def __init__(self) -> None:
        # Guards `_kept` and `_making`, so that two calls for one file share one report.
        self._lock = threading.Lock()
        self._kept: OrderedDict[ReportKey, ReportMade | _Failure] = OrderedDict()
        self._making: dict[ReportKey, tuple[str, Future[ReportMade]]] = {}
        self._threads = ThreadPoolExecutor(MADE_AT_ONCE, thread_name_prefix="file-report")

    def find(self, tenant: str, key: ReportKey, make: Callable[[], ReportMade]) -> ReportMade | None:
        """Return a report; None while it is being made, which begins with the first call.

        Raises:
            TooMany: ``CONCURRENCY_LIMITED``.
            MensError: the report could not be made; the next call tries again.
        """
        with self._lock:
            if kept := self._find_kept(key):
                return kept
            if key not in self._making:
                self._refuse_surplus(tenant)
                self._making[key] = tenant, self._threads.submit(self._make, key, make)
            _, future = self._making[key]
        # Without the lock, which `_make` takes to store the report.
        wait([future], FIRST_WAIT_SECONDS)
        with self._lock:
            # From the future, because another waiting caller may have taken the error.
            return self._find_kept(key) or (future.result() if future.done() else None)

    def _find_kept(self, key: ReportKey) -> ReportMade | None:
        """Return a kept report, or raise the error of one that could not be made; only the first caller gets the error."""
        kept = self._kept.get(key)
        if isinstance(kept, _Failure):
            del self._kept[key]
            if time.monotonic() - kept.since < FAILURE_SECONDS:
                raise kept.error
            return None
        if kept:
            self._kept.move_to_end(key)
        return kept

    def _make(self, key: ReportKey, make: Callable[[], ReportMade]) -> ReportMade:
        # Kept here and not by the next caller, because a caller may never ask again, and the report must not stay among
        # those being made.
        try:
            made = make()
        except Exception as error:
            self._keep(key, _Failure(error, time.monotonic()))
            raise
        self._keep(key, made)
        return made

    def _keep(self, key: ReportKey, made: ReportMade | _Failure) -> None:
        with self._lock:
            del self._making[key]
            self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def _refuse_surplus(self, tenant: str) -> None:
        making = [owner for owner, _ in self._making.values()]
        if len(making) >= WAITING or making.count(tenant) >= WAITING_OF_A_TENANT:
            raise TooMany(
                Code.CONCURRENCY_LIMITED,
                "Other reports on files are being created.",
                remedy="Try again when one of them has finished.",
                details={"retry_after_seconds": 5},
            )

    def close(self) -> None:
        """Do not begin further reports."""
        self._threads.shutdown(wait=False, cancel_futures=True)

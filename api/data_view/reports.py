"""Reports on files, made in the background and kept by what decides them: content, base, length and method."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from api.data_view.types import ReportMade
from shared.errors import Code, TooMany

KEPT = 64
MADE_AT_ONCE = 2
WAITING, WAITING_OF_A_TENANT = 16, 2
FIRST_WAIT_SECONDS = 1.0
"""Reports on small files are there within this time, so that most callers need not ask twice."""


class ReportKey(NamedTuple):
    """Identity of a report. sha256: of the file; base: digest of the base, empty without one."""

    sha256: str
    base: str
    seq_len: int | None
    method: str | None


class FileReports:
    """Reports that are kept or being made. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[ReportKey, ReportMade] = OrderedDict()
        self._making: dict[ReportKey, tuple[str, Future[ReportMade]]] = {}
        self._threads = ThreadPoolExecutor(MADE_AT_ONCE, thread_name_prefix="file-report")

    def find(self, tenant: str, key: ReportKey, make: Callable[[], ReportMade]) -> ReportMade | None:
        """Return a report; None while it is being made, which begins with the first call.

        Raises:
            TooMany: ``CONCURRENCY_LIMITED``. MensError: the report could not be made; the next call tries again.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            if key not in self._making:
                self._refuse_surplus(tenant)
                self._making[key] = tenant, self._threads.submit(make)
            _, future = self._making[key]
        wait([future], FIRST_WAIT_SECONDS)
        if not future.done():
            return None
        with self._lock:
            self._making.pop(key, None)
            # Raises the error of a report that could not be made, for the first caller alone.
            self._kept[key] = found = future.result()
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def _refuse_surplus(self, tenant: str) -> None:
        making = [owner for owner, future in self._making.values() if not future.done()]
        if len(making) >= WAITING or making.count(tenant) >= WAITING_OF_A_TENANT:
            raise TooMany(
                Code.CONCURRENCY_LIMITED,
                "Other reports on files are being made.",
                remedy="Try again when one of them has finished.",
                details={"retry_after_seconds": 5},
            )

    def close(self) -> None:
        """Begin no further report."""
        self._threads.shutdown(wait=False, cancel_futures=True)

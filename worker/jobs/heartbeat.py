"""Keeps a job's lease alive from a separate thread, and passes on the heartbeat's answer: a stop request, or the loss
of the lease.
"""

from __future__ import annotations

import logging
import threading
import time
from contextvars import copy_context
from types import TracebackType
from typing import Literal

from shared.database.leases import Lease, Leases
from shared.errors import LeaseLost, Unavailable

logger = logging.getLogger(__name__)


class LeaseKeeper:
    """Context manager: sends heartbeats while its block runs.

    Attributes:
        lost: whether another attempt owns the job; then stop the child process and write nothing.
        requested: the owner's stop request, as of the last heartbeat.
        contact_at: monotonic seconds of the last heartbeat that arrived; initially, of the claim.
    """

    def __init__(self, leases: Leases, lease: Lease, every_seconds: float) -> None:
        self._leases = leases
        self._lease = lease
        self._every = every_seconds
        self._done = threading.Event()
        # In the caller's context, so that its log lines have the job's ids.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._keep,), name=f"lease-{lease.job.id}", daemon=True
        )
        self.lost: LeaseLost | None = None
        self.contact_at = time.monotonic()
        self.requested: Literal["cancel", "pause"] | None = lease.job.requested

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        # Joined, because a heartbeat after the attempt's end would report a lost lease.
        self._thread.join()

    def _keep(self) -> None:
        while not self._done.wait(self._every) and self.lost is None:
            try:
                self.requested = self._leases.heartbeat(self._lease)
                self.contact_at = time.monotonic()
            except LeaseLost as error:
                self.lost = error
            except Unavailable as error:
                # The lease outlives a short outage of the database.
                logger.warning("no heartbeat for %s: %s", self._lease.job.id, error)
            except Exception:
                # If the thread died, the lease would run out while the child process still works.
                logger.exception("no heartbeat for %s", self._lease.job.id)

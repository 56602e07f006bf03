"""Body buffers: a limit on the bytes of request bodies that each tenant holds in an API process, so that one tenant
cannot fill its memory.

A body counts until its request has been answered: with its declared length from the beginning, otherwise as its bytes
arrive. Uploads do not count: they go to storage piece by piece.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.errors import Code, TooMany

RETRY_SECONDS = 1
"""``Retry-After`` of a body over the limit: a guess, because it is unknown when another request will end."""
Hold = Callable[[int], None]


class BodyBuffers:
    """Counts the body bytes that one process holds. Used in one event loop at a time.

    Args:
        max_bytes: largest number of bytes of one tenant at once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: Counter[str] = Counter()

    @contextmanager
    def of(self, tenant: str) -> Iterator[Hold]:
        """Yield a function that counts the bytes of one request's body, and raises ``CONCURRENCY_LIMITED`` over the
        limit; all of them are released at the end.
        """
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if self._held[tenant] + size > self._max_bytes:
                raise TooMany(
                    Code.CONCURRENCY_LIMITED,
                    f"The bodies of the tenant {tenant!r}'s requests in flight exceed {self._max_bytes} bytes in "
                    "total.",
                    remedy="Try again when one of them has finished, or send fewer requests in parallel.",
                    details={"retry_after_seconds": RETRY_SECONDS},
                )
            held += size
            self._held[tenant] += size

        try:
            yield hold
        finally:
            self._held[tenant] -= held
            self._held += Counter()  # drops zeros

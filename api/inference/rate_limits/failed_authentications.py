"""Failed authentications by client address: clients with repeated failures are throttled. Kept in each process.

Only failures are counted, after the lookup: many clients may share one address, and a valid key is never refused
because of another client's guesses, even when this process sees it for the first time. The cost of guesses is bounded
by the number of concurrent lookups.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from shared.errors import Code, TooMany, Unauthenticated

MAX_ADDRESSES = 10_000
"""Number of addresses that are remembered, by latest attempt; all others start from zero."""
IPV6_PREFIX = 64
"""One client may have all addresses of a network of this size."""
MAX_LOOKUPS = 2
"""Concurrent lookups of keys from one address that are not known yet; further ones wait for their turn."""


@dataclass(slots=True)
class _Allowance:
    left: float
    at: float
    # Limits the lookups, so that the guesses of one address do not occupy all threads that look up keys.
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_LOOKUPS))


class FailedAuthentications:
    """Allows each client address some failed authentications per minute (a token bucket). One address never affects
    another.

    Used in one event loop at a time.

    Args:
        per_minute: number of failures that an address may have at first, and that it regains per minute.
        clock: seconds since any moment.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()

    @asynccontextmanager
    async def lookup(self, address: str) -> AsyncIterator[None]:
        """Wrap the lookup of a key that is not known yet: wait for the address's turn, and count a failure if the key
        does not exist.

        Raises:
            TooMany: ``AUTHENTICATION_THROTTLED``, in place of ``Unauthenticated``: the address has used up its
                failures.
        """
        async with self._allowance(address).turns:
            try:
                yield
            except Unauthenticated:
                self.count(address)
                raise

    def count(self, address: str) -> None:
        """Count a failure of an address, or a request without a key that costs as much.

        Raises:
            TooMany: ``AUTHENTICATION_THROTTLED``: the address has used up its failures.
        """
        allowance = self._allowance(address)
        now = self._clock()
        regained = (now - allowance.at) * self._per_minute / 60
        allowance.left, allowance.at = min(allowance.left + regained, self._per_minute), now
        if allowance.left < 1:
            wait = max(math.ceil((1 - allowance.left) * 60 / self._per_minute), 1)
            raise TooMany(
                Code.AUTHENTICATION_THROTTLED,
                "This address has sent too many unknown keys, or begun too many sign-ins.",
                remedy=f"Check the key, if the request has one, then try again in {wait} s.",
                details={"retry_after_seconds": wait},
            )
        allowance.left -= 1

    def _allowance(self, address: str) -> _Allowance:
        network = _network(address)
        allowance = self._allowances.setdefault(network, _Allowance(self._per_minute, self._clock()))
        self._allowances.move_to_end(network)
        if len(self._allowances) > MAX_ADDRESSES:
            self._allowances.popitem(last=False)
        return allowance


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # a socket's path, or a test client
        return address
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False)) if parsed.version == 6 else address

"""Failed authentications by client address: who tries unknown keys again and again is told to wait. Kept in each process."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import Code, TooMany

MAX_ADDRESSES = 10_000
"""Addresses that are remembered, those that tried last; the rest begin anew."""
IPV6_PREFIX = 64
"""One client may have all addresses of a network of this size."""


@dataclass(slots=True)
class _Allowance:
    left: float
    at: float


class FailedAuthentications:
    """Allows each client address some failed authentications a minute (a token bucket). One address never affects another.

    Args:
        per_minute: failures that an address has at first, and gets back in a minute.
        clock: seconds since any moment.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()

    def begin(self, address: str) -> None:
        """Take one failure from the address's allowance before an unknown key is looked up, so that a burst is counted too.

        Raises:
            TooMany: ``AUTHENTICATION_THROTTLED``: it has none left.
        """
        now, network = self._clock(), _network(address)
        allowance = self._allowances.setdefault(network, _Allowance(self._per_minute, now))
        self._allowances.move_to_end(network)
        if len(self._allowances) > MAX_ADDRESSES:
            self._allowances.popitem(last=False)
        regained = (now - allowance.at) * self._per_minute / 60
        allowance.left, allowance.at = min(allowance.left + regained, self._per_minute), now
        if allowance.left < 1:
            wait = max(math.ceil((1 - allowance.left) * 60 / self._per_minute), 1)
            raise TooMany(
                Code.AUTHENTICATION_THROTTLED,
                "Too many requests with unknown keys came from this address.",
                remedy=f"Check the key, and try again in {wait} s.",
                details={"retry_after_seconds": wait},
            )
        allowance.left -= 1

    def give_back(self, address: str) -> None:
        """Give back what :meth:`begin` took: the key is known after all, or the database did not say."""
        if allowance := self._allowances.get(_network(address)):
            allowance.left += 1


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # a socket's path, or a test client
        return address
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False)) if parsed.version == 6 else address

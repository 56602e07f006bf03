"""Failed authentications: an allowance per minute for each address, in bounded memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from api.inference.rate_limits import failed_authentications
from api.inference.rate_limits.failed_authentications import MAX_LOOKUPS, FailedAuthentications
from shared.errors import Code, TooMany, Unauthenticated, Unavailable


@dataclass
class Clock:
    """Seconds that a test sets."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


async def fail(failures: FailedAuthentications, address: str) -> None:
    async with failures.lookup(address):
        raise Unauthenticated(Code.KEY_INVALID, "unknown")


def is_throttled(failures: FailedAuthentications, address: str) -> bool:
    try:
        asyncio.run(fail(failures, address))
    except TooMany:
        return True
    except Unauthenticated:
        return False
    raise AssertionError


def test_allowance_comes_back() -> None:
    clock = Clock()
    failures = FailedAuthentications(6, clock)
    assert [is_throttled(failures, "a") for _ in range(7)] == [False] * 6 + [True]
    clock.now += 9
    assert is_throttled(failures, "a")
    clock.now += 1
    assert [is_throttled(failures, "a") for _ in range(2)] == [False, True]
    clock.now += 3600
    assert [is_throttled(failures, "a") for _ in range(7)] == [False] * 6 + [True]


def test_wait_is_reported() -> None:
    failures = FailedAuthentications(6, Clock())
    for _ in range(6):
        is_throttled(failures, "a")
    with pytest.raises(TooMany) as refusal:
        asyncio.run(fail(failures, "a"))
    assert refusal.value.details == {"retry_after_seconds": 10}


def test_what_is_not_a_failure_is_not_counted() -> None:
    failures = FailedAuthentications(1, Clock())

    async def look_up(error: Exception | None) -> None:
        async with failures.lookup("a"):
            if error:
                raise error

    for _ in range(3):
        asyncio.run(look_up(None))
        with pytest.raises(Unavailable):
            asyncio.run(look_up(Unavailable(Code.DATABASE_UNAVAILABLE, "away")))
    assert not is_throttled(failures, "a")


def test_lookups_of_one_address_take_turns() -> None:
    failures = FailedAuthentications(1, Clock())
    running, most = 0, 0

    async def look_up() -> None:
        nonlocal running, most
        async with failures.lookup("a"):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    async def test() -> None:
        await asyncio.gather(*(look_up() for _ in range(20)))

    asyncio.run(test())
    assert most == MAX_LOOKUPS


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    failures = FailedAuthentications(1, Clock())
    assert not is_throttled(failures, "2001:db8::1")
    assert is_throttled(failures, "2001:db8::ffff")
    assert not is_throttled(failures, "2001:db8:0:1::1")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_authentications, "MAX_ADDRESSES", 10)
    failures = FailedAuthentications(1, Clock())
    for number in range(100):
        is_throttled(failures, f"10.0.0.{number}")
    assert len(failures._allowances) == 10
    assert is_throttled(failures, "10.0.0.99"), "the last are remembered"

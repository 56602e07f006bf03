"""Failed authentications: an allowance a minute for each address, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from api.inference.rate_limits import failed_authentications
from api.inference.rate_limits.failed_authentications import FailedAuthentications
from shared.errors import TooMany


@dataclass
class Clock:
    """Seconds that a test sets."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def is_refused(failures: FailedAuthentications, address: str) -> bool:
    try:
        failures.begin(address)
    except TooMany:
        return True
    return False


def test_allowance_comes_back() -> None:
    clock = Clock()
    failures = FailedAuthentications(6, clock)
    assert [is_refused(failures, "a") for _ in range(7)] == [False] * 6 + [True]
    clock.now += 9
    assert is_refused(failures, "a")
    clock.now += 1
    assert [is_refused(failures, "a") for _ in range(2)] == [False, True]
    clock.now += 3600
    assert [is_refused(failures, "a") for _ in range(7)] == [False] * 6 + [True]


def test_wait_is_told() -> None:
    failures = FailedAuthentications(6, Clock())
    for _ in range(6):
        failures.begin("a")
    with pytest.raises(TooMany) as refusal:
        failures.begin("a")
    assert refusal.value.details == {"retry_after_seconds": 10}


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    failures = FailedAuthentications(1, Clock())
    assert not is_refused(failures, "2001:db8::1")
    assert is_refused(failures, "2001:db8::ffff")
    assert not is_refused(failures, "2001:db8:0:1::1")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_authentications, "MAX_ADDRESSES", 10)
    failures = FailedAuthentications(1, Clock())
    for number in range(100):
        failures.begin(f"10.0.0.{number}")
    assert len(failures._allowances) == 10
    assert is_refused(failures, "10.0.0.99"), "the last are remembered"

"""The client for servers that get a key, and retries: which requests are repeated, how often, and after which delay."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from shared import http_retry
from shared.http_retry import Outcome, Retries, describe_outcome, is_temporary, keyed_client, retry_after


def outcomes(*statuses: int | None, **headers: str) -> list[Outcome]:
    """Responses with these statuses; None: no response."""
    return [
        httpx.ConnectError("refused") if status is None else httpx.Response(status, headers=headers)
        for status in statuses
    ]


def send(retries: Retries, of: Iterable[Outcome]) -> tuple[Outcome, int]:
    """The last outcome, and the number of requests."""
    following, sent = iter(of), 0

    def request() -> httpx.Response:
        nonlocal sent
        sent += 1
        outcome = next(following)
        if isinstance(outcome, httpx.RequestError):
            raise outcome
        return outcome

    return retries.send(request), sent


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits, which take no time and have no jitter."""
    waited: list[float] = []
    monkeypatch.setattr(http_retry, "JITTER", 1.0)
    monkeypatch.setattr("shared.http_retry.time.sleep", waited.append)
    return waited


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [*((status, False) for status in (200, 302, 400, 401, 404, 422, 501)),
     *((status, True) for status in (None, 408, 409, 429, 500, 502, 503, 504, 520))],
)  # fmt: skip
def test_temporary_outcomes(outcome: int | None, expected: bool) -> None:
    assert is_temporary(outcomes(outcome)[0]) is expected


def test_a_temporary_outcome_is_sent_again_and_another_is_not(waits: list[float]) -> None:
    last, sent = send(Retries(6), outcomes(None, 503, 200, 200))
    assert (describe_outcome(last), sent, waits) == ("status 200", 3, [1, 2])
    last, sent = send(Retries(6), outcomes(404, 200))
    assert (describe_outcome(last), sent) == ("status 404", 1)


def test_the_last_of_all_attempts_is_returned_whatever_it_is(waits: list[float]) -> None:
    last, sent = send(Retries(4, longest_wait=3), outcomes(500, 500, 500, None))
    assert (describe_outcome(last), sent, waits) == ("no response (ConnectError)", 4, [1, 2, 3])


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({"retry-after-ms": "250"}, 0.25), ({"Retry-After": "7.5"}, 7.5), ({"Retry-After": "soon"}, None), ({}, None),
     ({"Retry-After": "-1"}, 0), ({"Retry-After": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}, None)],
)  # fmt: skip
def test_every_form_of_retry_after(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after(outcomes(503, **headers)[0]) == expected


def test_retry_after_may_be_a_date() -> None:
    until = format_datetime(datetime.now(UTC) + timedelta(seconds=300))
    assert 200 <= (retry_after(outcomes(503, **{"Retry-After": until})[0]) or 0) <= 300


def test_the_server_says_how_long_to_wait(waits: list[float]) -> None:
    send(
        Retries(6, longest_wait=60),
        [*outcomes(503, **{"retry-after": "7"}), *outcomes(503, **{"retry-after": "90"}), *outcomes(200)],
    )
    assert waits == [7, 60]


@pytest.mark.parametrize("said", ["0", "nan", "-5", "Mon, 01 Jan 2024 00:00:00 GMT"])
def test_no_request_follows_another_at_once(waits: list[float], said: str) -> None:
    send(Retries(4), outcomes(503, 503, 503, 200, **{"retry-after": said}))
    assert waits == [1, 2, 4]


def test_a_response_that_cannot_be_read_is_an_outcome_too(waits: list[float]) -> None:
    last, sent = send(Retries(2), [httpx.DecodingError("not gzip"), *outcomes(200)])
    assert (describe_outcome(last), sent, waits) == ("status 200", 2, [1])


def test_waits_have_jitter_and_are_never_shorter_than_the_server_says(
    monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setattr(http_retry, "JITTER", 1.25)
    send(Retries(20), outcomes(*[503] * 20, **{"retry-after": "4"}))
    assert len(set(waits)) > 1
    assert all(4 <= seconds <= 5 for seconds in waits)


def test_a_limit_is_waited_for_without_counting_as_a_failure(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=10.0)
    monkeypatch.setattr("shared.http_retry.time.monotonic", lambda: next(clock))
    last, sent = send(Retries(2, limit_seconds=45), outcomes(429, 429, 503, 429, 200))
    assert (describe_outcome(last), sent) == ("status 200", 5)
    last, sent = send(Retries(2, limit_seconds=45), outcomes(*[429] * 9))
    assert (describe_outcome(last), sent) == ("status 429", 5)


def test_a_pause_that_raises_ends_the_retries() -> None:
    def pause(_seconds: float, outcome: Outcome) -> None:
        raise KeyError(describe_outcome(outcome))

    with pytest.raises(KeyError, match="status 503"):
        send(Retries(5, pause=pause), outcomes(503, 200))


def test_a_key_goes_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with keyed_client("http://127.0.0.1:9", "secret", read_seconds=3) as client:
        assert client.headers["authorization"] == "Bearer secret"
        assert (client.timeout.read, client.timeout.connect) == (3, 3)
        assert not client.trust_env
    with keyed_client(read_seconds=120) as client:
        assert "authorization" not in client.headers

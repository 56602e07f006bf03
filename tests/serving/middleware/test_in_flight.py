"""The model that a request names, as vLLM reads it, and the count of requests in flight."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.middleware.in_flight import InFlightRequests, named_model, read_body

AS_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


# More than of other rules, because it reads what anyone sends.
@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(["model", "Model", "messages", "n", ""]), AS_JSON), st.booleans())
def test_named_model_matches_the_standard_library(body: dict[str, object], ascii_only: bool) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    model = body.get("model")
    assert named_model(raw) == (model if isinstance(model, str) else None)


@pytest.mark.parametrize(
    ("raw", "model"),
    [
        (b'{"model": "a", "model": "b"}', "b"),
        (b'{"m\\u006fdel": "a"}', "a"),
        (b'{"model": "a", "temperature": NaN}', "a"),
        (b'{"model": "a", "logit_bias": {"1": -Infinity}}', "a"),
        (b'\xef\xbb\xbf{"model": "a"}', "a"),
        ('{"model": "a"}'.encode("utf-16"), "a"),
        (b'{"x": "\\ud800", "model": "a"}', "a"),
        (b'{"model": null}', None),
        (b'{"model": ["a"]}', None),
        (b'["model", "a"]', None),
        (b'{"model": "a"', None),
        (b'{"model": "a", "x": ' + b"[" * 100_000, None),
        (b"", None),
    ],
)
def test_named_model_of_unusual_bodies(raw: bytes, model: str | None) -> None:
    assert named_model(raw) == model


def receiving(*messages):
    left = list(messages)

    async def receive():
        return left.pop(0)

    return receive


def test_chunked_body_is_read_whole_and_replayed() -> None:
    async def read():
        receive = receiving(
            {"type": "http.request", "body": b"ab", "more_body": True},
            {"type": "http.request", "more_body": True},
            {"type": "http.request", "body": b"c"},
            {"type": "http.disconnect"},
        )
        body, again = await read_body(receive)
        return body, await again(), await again()

    body, first, then = asyncio.run(read())
    assert body == b"abc"
    assert first == {"type": "http.request", "body": b"abc", "more_body": False}
    assert then == {"type": "http.disconnect"}


def test_caller_that_disconnects_mid_body_has_no_request() -> None:
    receive = receiving({"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.disconnect"})
    assert asyncio.run(read_body(receive)) is None


def test_requests_count_until_they_end() -> None:
    in_flight = InFlightRequests()
    with in_flight.track("a"), in_flight.track("b"):
        with in_flight.track("a"):
            assert in_flight.count("a") == 2
        with pytest.raises(ZeroDivisionError), in_flight.track("a"):
            raise ZeroDivisionError
        assert (in_flight.count("a"), in_flight.count("b")) == (1, 1)
    assert (in_flight.count("a"), in_flight.count("c")) == (0, 0)


def test_wait_idle_ends_with_last_request_or_timeout() -> None:
    async def wait() -> list[bool]:
        in_flight = InFlightRequests()
        done = asyncio.Event()

        async def request() -> None:
            with in_flight.track("a"):
                await done.wait()

        running = asyncio.create_task(request())
        await asyncio.sleep(0)
        found = [await in_flight.wait_idle("other", 0), await in_flight.wait_idle("a", 0)]
        waiting = asyncio.create_task(in_flight.wait_idle("a", 60))
        done.set()
        await running
        return [*found, await waiting]

    assert asyncio.run(wait()) == [True, False, True]


def test_closed_model_stays_closed_until_reopened() -> None:
    in_flight = InFlightRequests()
    assert in_flight.close("a") == 0
    assert in_flight.close("a") >= 0
    assert (in_flight.is_closed("a"), in_flight.is_closed("b")) == (True, False)
    in_flight.reopen("a")
    in_flight.reopen("a")
    assert not in_flight.is_closed("a")

"""Which model a request names, by vLLM's own reading, and how many requests are under way."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.traffic import Traffic, named_model, read_body

AS_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(["model", "Model", "messages", "n", ""]), AS_JSON), st.booleans())
def test_the_name_is_the_one_that_the_standard_library_reads(body: dict[str, object], ascii_only: bool) -> None:
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
def test_odd_bodies(raw: bytes, model: str | None) -> None:
    assert named_model(raw) == model


def receiving(*messages):
    left = list(messages)

    async def receive():
        return left.pop(0)

    return receive


def test_a_body_in_pieces_is_read_whole_and_given_once_more() -> None:
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


def test_a_caller_who_leaves_while_sending_has_no_request() -> None:
    receive = receiving({"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.disconnect"})
    assert asyncio.run(read_body(receive)) is None


def test_requests_count_until_they_end_however_they_end() -> None:
    traffic = Traffic()
    with traffic.request("a"), traffic.request("b"):
        with traffic.request("a"):
            assert traffic.under_way("a") == 2
        with pytest.raises(ZeroDivisionError), traffic.request("a"):
            raise ZeroDivisionError
        assert (traffic.under_way("a"), traffic.under_way("b")) == (1, 1)
    assert (traffic.under_way("a"), traffic.under_way("c")) == (0, 0)


def test_waiting_ends_with_the_last_request_or_with_the_time() -> None:
    async def wait() -> list[bool]:
        traffic = Traffic()
        done = asyncio.Event()

        async def request() -> None:
            with traffic.request("a"):
                await done.wait()

        running = asyncio.create_task(request())
        await asyncio.sleep(0)
        found = [await traffic.wait_idle("other", 0), await traffic.wait_idle("a", 0)]
        waiting = asyncio.create_task(traffic.wait_idle("a", 60))
        done.set()
        await running
        return [*found, await waiting]

    assert asyncio.run(wait()) == [True, False, True]


def test_a_closed_model_stays_closed_until_it_is_opened() -> None:
    traffic = Traffic()
    assert traffic.close("a") == 0
    assert traffic.close("a") >= 0
    assert (traffic.is_closed("a"), traffic.is_closed("b")) == (True, False)
    traffic.reopen("a")
    traffic.reopen("a")
    assert not traffic.is_closed("a")

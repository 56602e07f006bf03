"""Usage in the real server's responses, as the gateway's taps read it, and the responses that the taps forward."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import httpx
import pytest

from api.inference.usage.meter import Meter
from api.inference.usage.taps import Tap
from shared.database.callers.key_records import Key
from shared.database.tenancy import Role
from shared.database.usage import Amount

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TOKENS = 12
FIXED: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": TOKENS}
MESSAGES = [{"role": "user", "content": 'say "usage":{ and ,"choices":[] and \\'}]
REQUESTS = {
    "chat": (CHAT, {"messages": MESSAGES}),
    "chat with two choices": (CHAT, {"messages": MESSAGES, "n": 2, "temperature": 1, "top_k": 1}),
    "chat with logprobs and ids": (
        CHAT,
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 5, "return_token_ids": True},
    ),
    "completion": (COMPLETIONS, {"prompt": "the red fox"}),
    "prompts with two choices each": (
        COMPLETIONS,
        {"prompt": ["the red fox", "hello"], "n": 2, "temperature": 1, "top_k": 1},
    ),
    "completion with its prompt and logprobs": (COMPLETIONS, {"prompt": 'a "ship"', "echo": True, "logprobs": 3}),
}
OPTIONS: dict[str, dict[str, Any] | None] = {
    "not requested": None,
    "last": {"include_usage": True},
    "every": {"include_usage": True, "continuous_usage_stats": True},
}
KEY = Key(
    id="key-a",
    name="a",
    tenant="acme",
    role=Role.VIEWER,
    requests_per_minute=None,
    concurrent_requests=None,
    created_at=datetime.now(UTC),
    revoked_at=None,
)


class RecordingMeter(Meter):
    """A meter that records its counts and writes none."""

    def __init__(self) -> None:
        self.amounts: list[Amount] = []

    def _count(self, _key: Key, _model: str, amount: Amount) -> None:
        self.amounts.append(amount)


@pytest.fixture
def meter() -> RecordingMeter:
    return RecordingMeter()


def post(client: httpx.Client, path: str, body: dict[str, Any], tap: Tap | None = None) -> bytes:
    """The response's bytes, as they leave the tap if there is one."""
    with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        got = b"".join(tap(chunk) if tap else chunk for chunk in response.iter_raw())
    if tap:
        got += tap.end()
        tap.close()
    return got


def events_of(response: httpx.Response) -> Iterator[bytes]:
    """The events of a stream as they come, each with its end."""
    rest = b""
    for chunk in response.iter_raw():
        *whole, rest = (rest + chunk).split(b"\n\n")
        yield from (event + b"\n\n" for event in whole)


def events(stream: bytes) -> list[dict[str, Any]]:
    *lines, done, rest = stream.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


def summary(stream: bytes) -> tuple[Any, ...]:
    """The content of a stream, however vLLM has distributed its tokens over events."""
    texts: dict[int, str] = defaultdict(str)
    usages, shapes, lasts = Counter[str](), set(), []
    for event in events(stream):
        shapes.add(tuple(name for name in event if name not in ("system_fingerprint", "usage")))
        usages["with" if "usage" in event else "without"] += 1
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            lasts.append(choice.get("finish_reason"))
        if not event["choices"]:
            lasts.append(event["usage"])
    usage = "every" if not usages["without"] else "some" if usages["with"] else "none"
    return dict(texts), shapes, usage, [last for last in lasts if last]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("path", "request_"), REQUESTS.values(), ids=REQUESTS)
def test_tap_leaves_response_unchanged_and_counts_all_tokens(
    client: httpx.Client,
    serving_installation: Any,
    meter: RecordingMeter,
    path: str,
    request_: dict[str, Any],
    options: dict[str, Any] | None,
) -> None:
    body = {"model": serving_installation.entry.name, **FIXED, **request_}
    streamed = {**body, "stream": True, **({} if options is None else {"stream_options": options})}
    sent, tap = meter.of(KEY, "m", path, streamed)
    assert summary(post(client, path, sent, tap)) == summary(post(client, path, streamed))

    sent, tap = meter.of(KEY, "m", path, body)
    whole = json.loads(post(client, path, sent, tap))
    assert meter.amounts[0] == meter.amounts[1]
    assert meter.amounts[0].prompt_tokens == whole["usage"]["prompt_tokens"] > 0
    assert meter.amounts[0].completion_tokens == whole["usage"]["completion_tokens"] == TOKENS * len(whole["choices"])


@pytest.mark.parametrize(("path", "request_"), REQUESTS.values(), ids=REQUESTS)
def test_early_disconnect_counts_the_tokens_sent(
    client: httpx.Client, serving_installation: Any, meter: RecordingMeter, path: str, request_: dict[str, Any]
) -> None:
    body = {"model": serving_installation.entry.name, **FIXED, **request_, "max_tokens": 100, "stream": True}
    sent, tap = meter.of(KEY, "m", path, body)
    whole = json.loads(post(client, path, {**body, "stream": False}))
    with client.stream("POST", path, json=sent) as response:
        # Event by event: a busy machine has many of them in one chunk, and all of them if this process comes to run too late.
        got = b"".join(tap(event) for event in islice(events_of(response), 12))
    tap.close()
    [amount] = meter.amounts
    assert amount.prompt_tokens == whole["usage"]["prompt_tokens"]
    # At least a token an event, except the ones that only carry the role; each choice may have one of these.
    assert got.count(b"\n\n") - 4 <= amount.completion_tokens < whole["usage"]["completion_tokens"]


def test_usage_of_the_responses_api_is_counted(
    client: httpx.Client, serving_installation: Any, meter: RecordingMeter
) -> None:
    body = {
        "model": serving_installation.entry.name,
        "input": "hello",
        "max_output_tokens": TOKENS,
        "temperature": 0,
        "store": False,
    }
    sent, tap = meter.of(KEY, "m", RESPONSES, {**body, "stream": True})
    stream = post(client, RESPONSES, sent, tap)
    sent, tap = meter.of(KEY, "m", RESPONSES, body)
    whole = json.loads(post(client, RESPONSES, sent, tap))
    assert b"event: response.completed\n" in stream
    assert meter.amounts[0].prompt_tokens == meter.amounts[1].prompt_tokens == whole["usage"]["input_tokens"] > 0
    assert meter.amounts[0].completion_tokens == whole["usage"]["output_tokens"] > 0

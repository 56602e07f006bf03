"""The real server tells usage as the front door's taps read it, and what they leave is what it would have sent unasked."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from api.metering import Meter
from api.taps import Tap
from shared.keys import Key
from shared.tenancy import Role
from shared.usage import Amount

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

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
    "unasked": None,
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


class Kept(Meter):
    """A meter that keeps its counts to itself."""

    def __init__(self) -> None:
        self.amounts: list[Amount] = []

    def _count(self, _key: Key, _model: str, amount: Amount) -> None:
        self.amounts.append(amount)


@pytest.fixture(scope="module")
def client(vllm_server: Any) -> Iterator[httpx.Client]:
    with vllm_server.client() as client:
        yield client


@pytest.fixture
def meter() -> Kept:
    return Kept()


def through(client: httpx.Client, path: str, body: dict[str, Any], tap: Tap | None = None) -> bytes:
    """The answer's bytes, as they come through a tap if there is one."""
    with client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        got = b"".join(tap(chunk) if tap else chunk for chunk in answer.iter_raw())
    if tap:
        got += tap.end()
        tap.close()
    return got


def events(stream: bytes) -> list[dict[str, Any]]:
    *lines, done, rest = stream.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


def summary(stream: bytes) -> tuple[Any, ...]:
    """What a stream says, however vLLM has put its tokens into events."""
    texts: dict[int, str] = defaultdict(str)
    told, shapes, lasts = Counter[str](), set(), []
    for event in events(stream):
        shapes.add(tuple(name for name in event if name not in ("system_fingerprint", "usage")))
        told["with" if "usage" in event else "without"] += 1
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            lasts.append(choice.get("finish_reason"))
        if not event["choices"]:
            lasts.append(event["usage"])
    usage = "every" if not told["without"] else "some" if told["with"] else "none"
    return dict(texts), shapes, usage, [last for last in lasts if last]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("path", "request_"), REQUESTS.values(), ids=REQUESTS)
def test_the_caller_gets_what_it_would_have_got_and_all_is_counted(
    client: httpx.Client, lab: Any, meter: Kept, path: str, request_: dict[str, Any], options: dict[str, Any] | None
) -> None:
    body = {"model": lab.entry.name, **FIXED, **request_}
    streamed = {**body, "stream": True, **({} if options is None else {"stream_options": options})}
    asked, tap = meter.of(KEY, "m", path, streamed)
    assert summary(through(client, path, asked, tap)) == summary(through(client, path, streamed))

    asked, tap = meter.of(KEY, "m", path, body)
    whole = json.loads(through(client, path, asked, tap))
    assert meter.amounts[0] == meter.amounts[1]
    assert meter.amounts[0].prompt_tokens == whole["usage"]["prompt_tokens"] > 0
    assert meter.amounts[0].completion_tokens == whole["usage"]["completion_tokens"] == TOKENS * len(whole["choices"])


@pytest.mark.parametrize(("path", "request_"), REQUESTS.values(), ids=REQUESTS)
def test_who_leaves_early_is_counted_with_what_came(
    client: httpx.Client, lab: Any, meter: Kept, path: str, request_: dict[str, Any]
) -> None:
    body = {"model": lab.entry.name, **FIXED, **request_, "max_tokens": 100, "stream": True}
    asked, tap = meter.of(KEY, "m", path, body)
    whole = json.loads(through(client, path, {**body, "stream": False}))
    with client.stream("POST", path, json=asked) as answer:
        got = b""
        for chunk in answer.iter_raw():
            got += tap(chunk)
            if got.count(b"\n\n") >= 20:
                break
    tap.close()
    [amount] = meter.amounts
    assert amount.prompt_tokens == whole["usage"]["prompt_tokens"]
    # At least a token an event, but for those that only say whose turn it is; each choice may have one of these.
    assert got.count(b"\n\n") - 4 <= amount.completion_tokens < whole["usage"]["completion_tokens"]


def test_responses(client: httpx.Client, lab: Any, meter: Kept) -> None:
    body = {"model": lab.entry.name, "input": "hello", "max_output_tokens": TOKENS, "temperature": 0, "store": False}
    asked, tap = meter.of(KEY, "m", RESPONSES, {**body, "stream": True})
    stream = through(client, RESPONSES, asked, tap)
    asked, tap = meter.of(KEY, "m", RESPONSES, body)
    whole = json.loads(through(client, RESPONSES, asked, tap))
    assert b"event: response.completed\n" in stream
    assert meter.amounts[0].prompt_tokens == meter.amounts[1].prompt_tokens == whole["usage"]["input_tokens"] > 0
    assert meter.amounts[0].completion_tokens == whole["usage"]["output_tokens"] > 0

"""Usage and limits over the whole path of a request, to a fake replica that reports usage as vLLM does."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from openai import OpenAI, RateLimitError

from api.inference.rate_limits import stores
from api.inference.rate_limits.limiter import RateLimiter
from api.inference.rate_limits.stores import SharedStore, ValkeyStore
from api.inference.usage.meter import Meter
from shared.database.names.aliases import Actor
from shared.database.routing import Routing, Shadow
from shared.database.tenancy import KeyLimits, Role
from shared.database.usage import Period
from tests.support.asgi_server import serve
from tests.support.builders import BASE
from tests.support.gateway import ADAPTER, register_adapters
from tests.support.valkey import running_valkey
from tests.support.waiting import eventually

pytestmark = pytest.mark.network

EVENTS = 20
PROMPT_TOKENS = 7
SHADOW = f"helper@{'c' * 64}"
SLOW = "slow"
REFUSED = "refused"


class UsageReplica:
    """Streams a token an event, and reports usage on request. The user ``SLOW`` gets pauses, ``REFUSED`` a 400.

    Attributes:
        requests: bodies.
        held: while it is set, no answer ends.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.held = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = {} if scope["method"] == "GET" else json.loads((await receive())["body"])
        if body:
            self.requests.append(body)
        user = body.get("user")
        status, kind = (400 if user == REFUSED else 200), ("event-stream" if body.get("stream") else "json")
        head = {"type": "http.response.start", "status": status}
        await send({**head, "headers": [(b"content-type", f"text/{kind}".encode())]})
        for piece in streamed(**(body.get("stream_options") or {})) if body.get("stream") else [whole()]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0.05 if user == SLOW else 0)
        while self.held.is_set():  # noqa: ASYNC110  set by a test, in another thread
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b""})


def usage(completion: int) -> dict[str, int]:
    total = PROMPT_TOKENS + completion
    return {"prompt_tokens": PROMPT_TOKENS, "total_tokens": total, "completion_tokens": completion}


def whole() -> bytes:
    return json.dumps({"choices": [{"index": 0, "text": "x"}], "usage": usage(EVENTS)}, separators=(",", ":")).encode()


def streamed(include_usage: bool = False, continuous_usage_stats: bool = False) -> list[bytes]:
    def event(choices: list[Any], usage_: dict[str, int] | None) -> bytes:
        fields = {"id": "c", "choices": choices, **({"usage": usage_} if usage_ else {})}
        return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"

    pieces = [
        event([{"index": 0, "text": "x"}], usage(number) if continuous_usage_stats else None)
        for number in range(1, EVENTS + 1)
    ]
    return [*pieces, *([event([], usage(EVENTS))] if include_usage else []), b"data: [DONE]\n\n"]


class RunningGateway:
    """The API on a real socket, in front of the replica."""

    def __init__(self, app: FastAPI, url: str, replica: UsageReplica) -> None:
        self.app = app
        self.services = app.state.services
        self.replica = replica
        self.url = url

    def client(self, rate: int | None = None, slots: int | None = None) -> httpx.Client:
        """A client with a key of its own."""
        limits = KeyLimits(requests_per_minute=rate, concurrent_requests=slots)
        _, secret = self.services.keys.create("test", "acme", Role.VIEWER, limits)
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {secret}"}, timeout=60)


@pytest.fixture
def gateway(app: FastAPI) -> Iterator[RunningGateway]:
    yield from open_gateway(app, interval=0.02)


def open_gateway(app: FastAPI, interval: float, **parts: Any) -> Iterator[RunningGateway]:
    """The gateway with a meter of that interval; `parts` take the place of others of its parts."""
    replica = UsageReplica()
    services = app.state.services
    meter = Meter(services.usage, interval)
    services = app.state.services = replace(services, gateway=replace(services.gateway, meter=meter, **parts))
    register_adapters(app)
    for replica_url in serve(replica):
        services.settings.serving_urls[:] = [replica_url]
        for url in serve(app, lifespan="on"):
            yield RunningGateway(app, url, replica)


def complete(client: httpx.Client, **more: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"model": BASE, "prompt": "?", **more})


def used(client: httpx.Client, enough: Callable[[int], bool] = bool) -> dict[str, tuple[int, int, int]]:
    """Usage of the client's key by model, as soon as its number of requests is enough."""
    deadline = time.monotonic() + 60
    while True:
        lines = client.get("/v1/usage", params={"group_by": "model"}).json()["data"]
        if enough(sum(line["requests"] for line in lines)):
            return {
                line["model"]: (line["requests"], line["prompt_tokens"], line["completion_tokens"]) for line in lines
            }
        assert time.monotonic() < deadline, lines
        time.sleep(0.02)


def test_counted_responses_are_byte_for_byte_those_of_the_replica(gateway: RunningGateway) -> None:
    with gateway.client() as client:
        assert complete(client).content == whole()
        assert complete(client, stream=True).content == b"".join(streamed())
        last, every = {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}
        assert complete(client, stream=True, stream_options=last).content == b"".join(streamed(**last))
        assert complete(client, stream=True, model=ADAPTER, stream_options=every).content == b"".join(streamed(**every))
        assert used(client, lambda requests: requests == 4) == {
            BASE: (3, 3 * PROMPT_TOKENS, 3 * EVENTS),
            ADAPTER: (1, PROMPT_TOKENS, EVENTS),
        }


def test_early_disconnect_is_counted_and_releases_the_slot(gateway: RunningGateway) -> None:
    with gateway.client(slots=1) as client:
        for _ in range(3):
            body = {"model": BASE, "prompt": "?", "stream": True, "user": SLOW}
            with client.stream("POST", "/v1/completions", json=body) as response:
                assert response.status_code == 200, response.read()
                lines = response.iter_lines()
                assert next(lines).endswith('"text":"x"}]}')
                assert next(lines) == ""
                assert next(lines).startswith("data: ")
        [(requests, prompt, completion)] = used(client, lambda requests: requests == 3).values()
        assert (requests, prompt) == (3, 3 * PROMPT_TOKENS)
        assert 3 * 2 <= completion < 3 * EVENTS


def test_consecutive_requests_always_find_their_slot(gateway: RunningGateway) -> None:
    with gateway.client(slots=1) as client:
        for number in range(30):
            assert complete(client, stream=number % 2 == 0).status_code == 200
        assert complete(client, model="nobody").status_code == 404
        assert complete(client, user=REFUSED).status_code == 400
        assert client.post("/v1/completions", content=b"no json").status_code == 400
        assert complete(client).status_code == 200
        assert used(client, lambda requests: requests >= 31) == {BASE: (31, 31 * PROMPT_TOKENS, 31 * EVENTS)}


def test_concurrent_requests_to_two_processes_share_a_limit(
    app: FastAPI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "TIMEOUT_SECONDS", 30.0)  # as on a busy machine an answer may take a second
    with running_valkey(tmp_path) as valkey:
        limiter = RateLimiter(SharedStore(ValkeyStore(valkey.url)), pauses=())
        for gateway in open_gateway(app, interval=0.02, limiter=limiter):
            asyncio.run(request_beside_another_process(gateway, valkey.url))
            assert valkey.client().keys("*slots*") == []


async def request_beside_another_process(gateway: RunningGateway, valkey_url: str) -> None:
    """With one of the key's two slots held by another process, one of two requests is served and one refused."""
    other = RateLimiter(SharedStore(ValkeyStore(valkey_url)), pauses=())
    with gateway.client(rate=100, slots=2) as client, ThreadPoolExecutor(2) as pool:
        key = client.headers["authorization"].removeprefix("Bearer ")
        async with await other.admit(gateway.services.keys.authenticate(key)):
            gateway.replica.held.set()
            futures = [asyncio.wrap_future(pool.submit(complete, client, stream=True)) for _ in range(2)]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            gateway.replica.held.clear()
            responses = await asyncio.gather(*futures)
    await other.close()
    [served, refused] = sorted(responses, key=lambda response: response.status_code)
    assert (served.status_code, refused.status_code) == (200, 429)
    assert refused.json()["error"]["mens"]["code"] == "CONCURRENCY_LIMITED"
    assert refused.headers["retry-after"] == "1"
    assert served.headers["x-ratelimit-limit-requests"] == "100"
    assert served.headers["x-ratelimit-remaining-requests"] == "98"


def test_openais_client_raises_its_rate_limit_error(gateway: RunningGateway) -> None:
    with gateway.client(rate=1) as client:
        key = client.headers["authorization"].removeprefix("Bearer ")
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as openai:
        openai.completions.create(model=BASE, prompt="?")
        with pytest.raises(RateLimitError) as refused:
            openai.completions.create(model=BASE, prompt="?")
    assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "requests")
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_that_were_answered_reach_the_limit(gateway: RunningGateway, stream: bool) -> None:
    keys, total = gateway.services.keys, PROMPT_TOKENS + EVENTS
    _, key = keys.create(f"t{stream}", "acme", Role.VIEWER, KeyLimits(tokens_per_minute=total + 1))
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as openai:

        def ask() -> str:
            raw = openai.completions.with_raw_response.create(model=BASE, prompt="?", stream=stream)
            raw.http_response.read()
            return str(raw.headers["x-ratelimit-remaining-tokens"])

        def is_counted() -> bool:
            return gateway.services.gateway.limiter._background == set()

        assert ask() == str(total + 1)
        eventually(is_counted)
        assert ask() == "1", "one is left, so the next is answered"
        eventually(is_counted)
        with pytest.raises(RateLimitError) as refused:
            ask()
    assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "tokens")
    assert refused.value.response.headers["x-ratelimit-remaining-tokens"] == "0"


def test_copies_for_a_shadow_are_not_counted(gateway: RunningGateway) -> None:
    routing = Routing.to(ADAPTER).model_copy(update={"shadow": Shadow(adapter=SHADOW, share=1.0)})
    gateway.services.aliases.set("watched", routing, Actor(id="key-x", name="x"))
    with gateway.client() as client:
        assert complete(client, model="watched", stream=True).status_code == 200
        deadline = time.monotonic() + 60
        while len(gateway.replica.requests) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.2)
        assert used(client) == {ADAPTER: (1, PROMPT_TOKENS, EVENTS)}


def test_shutdown_writes_the_remaining_usage(app: FastAPI) -> None:
    usage, period = app.state.services.usage, Period(date.min, date.max)
    for gateway in open_gateway(app, interval=600):
        with gateway.client() as client:
            assert complete(client).status_code == 200
        assert usage.lines("acme", period, []) == []
    [line] = usage.lines("acme", period, [])
    assert (line.requests, line.completion_tokens) == (1, EVENTS)

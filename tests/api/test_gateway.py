"""The chat proxy against a small replica of our own; `tests/system/test_front_door.py` runs it against the real vLLM."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.catalog import Catalog, save_catalog
from shared.job import Kind, Submission, new_id
from shared.lease import LeaseLedger
from shared.registry import NewAdapter
from shared.tenancy import KeyLimits, Role
from tests.api.conftest import BASE
from tests.api.raw_replica import eventually

pytestmark = pytest.mark.network

ADAPTER = f"helper@{'a' * 64}"
UNPUBLISHED = f"helper@{'b' * 64}"


@dataclass
class FakeReplica:
    """Answers like vLLM, remembers what it was asked, and whether its caller went away."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    abandoned: threading.Event = field(default_factory=threading.Event)
    delay: float = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/health":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body = json.loads((await receive())["body"])
        self.asked.append(body | {"path": scope["path"]})
        status = 404 if body["model"].endswith("c" * 64) else 200
        content = b"text/event-stream" if body.get("stream") else b"application/json"
        pause = asyncio.ensure_future(asyncio.sleep(self.delay))
        gone = asyncio.ensure_future(receive())
        await asyncio.wait({pause, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.abandoned.set()
            return
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", content)]})
        for index in range(50 if body.get("stream") else 1):
            if gone.done():
                self.abandoned.set()
                return
            chunk = f"data: {index}\n\n" if body.get("stream") else json.dumps({"served": body["model"]})
            await send({"type": "http.response.body", "body": chunk.encode(), "more_body": True})
            await asyncio.sleep(0.02 if body.get("stream") else 0)
        await send({"type": "http.response.body", "body": b""})


def serve(application: Any, lifespan: Literal["on", "off"] = "off") -> Iterator[str]:
    """An ASGI application on a free loopback port, in a thread."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error", lifespan=lifespan))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit, server.force_exit = True, lifespan == "off"
    thread.join(5)


@pytest.fixture
def replica() -> Iterator[FakeReplica]:
    replica = FakeReplica()
    for url in serve(replica):
        replica.url = url
        yield replica


@pytest.fixture
def front_door(app: FastAPI, replica: FakeReplica) -> Iterator[httpx.Client]:
    """A client of the API on a real socket: a disconnect is a real one."""
    services = app.state.services
    services.settings.serving_urls[:] = [replica.url]  # read when the first request comes
    _, secret = services.keys.create("test")
    register_adapters(app)
    for url in serve(app, lifespan="on"):
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=10) as client:
            yield client


def register_adapters(app: FastAPI) -> None:
    ledger = LeaseLedger(app.state.services.database, 60)
    submission = Submission(kind=Kind.FINETUNE, base_model=BASE, name="helper", contract={}, plan={})
    job, _ = app.state.services.ledger.submit(submission)
    lease = ledger.claim(job.id, "w")
    assert lease

    def adapter(name: str, *, final: bool, published: bool) -> NewAdapter:
        digest = name.partition("@")[2]
        return NewAdapter(
            id=name, digest=digest, base_model=BASE, step=1, final=final, published=published, manifest={}
        )

    adapters = [
        adapter(ADAPTER, final=True, published=True),
        adapter(UNPUBLISHED, final=False, published=False),
        adapter(f"helper@{'c' * 64}", final=False, published=True),
    ]
    ledger.finish(lease, {}, adapters=adapters, alias="helper")


@pytest.mark.parametrize(("model", "served"), [(BASE, BASE), (ADAPTER, ADAPTER), ("helper", ADAPTER)])
def test_names_become_what_the_replica_serves(
    front_door: httpx.Client, replica: FakeReplica, model: str, served: str
) -> None:
    messages = [{"role": "user", "content": "?"}]
    answer = front_door.post("/v1/chat/completions", json={"model": model, "messages": messages, "x": [1]})
    assert answer.json() == {"served": served}
    assert answer.headers.get("x-mens-adapter") == (None if served == BASE else served)
    (asked,) = replica.asked
    assert asked.pop("cache_salt")
    assert asked == {"path": "/v1/chat/completions", "model": served, "messages": messages, "x": [1]}


def test_a_base_that_is_new_is_served_at_once(app: FastAPI, front_door: httpx.Client, replica: FakeReplica) -> None:
    assert front_door.post("/v1/completions", json={"model": BASE, "prompt": "x"}).json() == {"served": BASE}
    path, bases = app.state.services.settings.catalog_path, app.state.services.catalog().bases
    save_catalog(path, Catalog(bases=[*bases, bases[0].model_copy(update={"name": "new-base"})]))
    assert front_door.post("/v1/completions", json={"model": "new-base", "prompt": "x"}).json() == {
        "served": "new-base"
    }


@pytest.mark.parametrize("model", ["nobody", UNPUBLISHED, "../etc/passwd", "", None, 3, [BASE]])
def test_other_names_never_reach_the_replica(front_door: httpx.Client, replica: FakeReplica, model: object) -> None:
    answer = front_door.post("/v1/chat/completions", json={"model": model})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == "model"
    assert not replica.asked


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "REQUEST_INVALID"),
        (b"[]", "REQUEST_INVALID"),
        (b"[" * 9_000, "REQUEST_INVALID"),
        (b'{"model": "\\ud800"}', "REQUEST_INVALID"),
        (b'{"model": "\xff"}', "REQUEST_INVALID"),
        (b"x" * 10_001, "BODY_TOO_LARGE"),
    ],
)
def test_bodies_that_are_refused(front_door: httpx.Client, content: bytes, code: str) -> None:
    assert front_door.post("/v1/completions", content=content).json()["error"]["code"] == code


def test_a_stream_is_passed_on_as_it_comes(front_door: httpx.Client) -> None:
    arrivals = []
    with front_door.stream("POST", "/v1/completions", json={"model": BASE, "stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        arrivals = [(time.monotonic(), chunk) for chunk in answer.iter_raw()]
    assert b"".join(chunk for _, chunk in arrivals).endswith(b"data: 49\n\n")
    assert arrivals[-1][0] - arrivals[0][0] > 0.3, "the first chunk did not wait for the last"


def test_a_client_that_leaves_a_stream_cancels_it_upstream(front_door: httpx.Client, replica: FakeReplica) -> None:
    with front_door.stream("POST", "/v1/completions", json={"model": BASE, "stream": True}) as answer:
        next(answer.iter_raw())
    assert replica.abandoned.wait(2)


def test_a_client_that_leaves_before_the_answer_cancels_it_upstream(
    front_door: httpx.Client, replica: FakeReplica
) -> None:
    replica.delay = 8
    with pytest.raises(httpx.ReadTimeout):
        front_door.post("/v1/completions", json={"model": BASE}, timeout=0.5)
    assert replica.abandoned.wait(2)


def test_a_replica_that_is_down_is_passed_over(app: FastAPI, front_door: httpx.Client, replica: FakeReplica) -> None:
    app.state.services.settings.serving_urls[:] = ["http://127.0.0.1:9", "http://127.0.0.1:10", replica.url]
    for _ in range(3):
        assert front_door.post("/v1/completions", json={"model": BASE}).status_code == 200


def test_no_replica_at_all_is_a_503(app: FastAPI, client: TestClient) -> None:
    register_adapters(app)
    answer = client.post("/v1/chat/completions", json={"model": "helper"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "SERVING_UNAVAILABLE")
    assert answer.headers["retry-after"]


def test_a_known_adapter_that_the_replica_refuses(front_door: httpx.Client) -> None:
    answer = front_door.post("/v1/chat/completions", json={"model": f"helper@{'c' * 64}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "SERVING_REFUSED")


def test_closed_paths_stay_closed(front_door: httpx.Client, replica: FakeReplica) -> None:
    for path in (
        "/v1/load_lora_adapter",
        "/invocations",
        "/tokenize",
        "/metrics",
        "/v1/chat/completions/../../metrics",
    ):
        assert front_door.post(path, json={"model": BASE}).status_code in (404, 405)
    assert not replica.asked


# -- tenants, moves and limits ---------------------------------------------------------------------------------------


def ask_as(app: FastAPI, front_door: httpx.Client, tenant: str, **body: Any) -> httpx.Response:
    """A completion, asked for with a new key of a tenant."""
    _, secret = app.state.services.keys.create(new_id("k"), tenant)
    headers = {"Authorization": f"Bearer {secret}"}
    return front_door.post("/v1/completions", json={"model": BASE} | body, headers=headers)


def test_tenants_share_no_prefix_cache(app: FastAPI, front_door: httpx.Client, replica: FakeReplica) -> None:
    for tenant, own in (("acme", None), ("acme", None), ("other", None), ("acme", "mine"), ("other", "mine")):
        assert ask_as(app, front_door, tenant, **({"cache_salt": own} if own else {})).status_code == 200
    salts = [str(asked["cache_salt"]) for asked in replica.asked]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 4
    assert "mine" not in " ".join(salts)


def test_a_move_that_has_returned_is_followed(app: FastAPI, front_door: httpx.Client, replica: FakeReplica) -> None:
    another = f"helper@{'c' * 64}"
    assert front_door.post("/v1/completions", json={"model": "helper"}).headers["x-mens-adapter"] == ADAPTER
    for number in range(10):
        adapter = (another, ADAPTER)[number % 2]
        assert front_door.put("/v1/aliases/helper", json={"adapter": adapter}).status_code == 200
        front_door.post("/v1/completions", json={"model": "helper"})
        assert replica.asked[-1]["model"] == adapter
    assert front_door.delete("/v1/aliases/helper").status_code == 200
    assert front_door.post("/v1/completions", json={"model": "helper"}).status_code == 404


@pytest.mark.parametrize("way", ["read", "left", "refused", "unknown"])
def test_a_slot_is_held_as_long_as_the_answer_takes(
    app: FastAPI, front_door: httpx.Client, replica: FakeReplica, way: str
) -> None:
    limits = KeyLimits(concurrent_requests=1)
    _, secret = app.state.services.keys.create("one", "acme", Role.VIEWER, limits)
    front_door.headers["Authorization"] = f"Bearer {secret}"
    body = {"model": {"refused": f"helper@{'c' * 64}", "unknown": "nobody"}.get(way, BASE), "stream": True}
    with front_door.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.is_success is (way in ("read", "left"))
        if answer.is_success:
            second = front_door.post("/v1/completions", json={"model": BASE})
            assert (second.status_code, second.json()["error"]["code"]) == (429, "CONCURRENCY_LIMITED")
        if way == "left":
            next(answer.iter_raw())
        else:
            answer.read()
    if way == "left":
        assert replica.abandoned.wait(2)
    assert front_door.post("/v1/completions", json={"model": BASE}).status_code == 200


def test_what_was_answered_is_counted(app: FastAPI, front_door: httpx.Client) -> None:
    for model in ("helper", "helper", BASE, "nobody", f"helper@{'c' * 64}"):
        front_door.post("/v1/completions", json={"model": model, "stream": model == BASE})
    app.state.services.meter._interval = 0.0
    eventually(lambda: len(front_door.get("/v1/usage").json()["data"]) == 2, seconds=10)
    counted = {line["model"]: line["requests"] for line in front_door.get("/v1/usage").json()["data"]}
    assert counted == {ADAPTER: 2, BASE: 1}

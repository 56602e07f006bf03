"""Shared parts of the gateway's tests: a replica that responds like vLLM, and published adapters."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import httpx
from fastapi import FastAPI

from shared.database.adapters import NewAdapter
from shared.database.leases import Leases
from shared.database.records import Kind, Submission
from tests.support.asgi_server import serve
from tests.support.builders import BASE

ADAPTER = f"helper@{'a' * 64}"
UNPUBLISHED = f"helper@{'b' * 64}"


@dataclass
class FakeReplica:
    """An ASGI application that responds like vLLM.

    Attributes:
        asked: bodies of the requests, each with its path.
        request_ids: ids of the requests, as the replica's log would show them.
        abandoned: set once a caller has disconnected.
        delay: seconds before the response begins.
        held: while this is set, a stream waits before its last chunk.
    """

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    abandoned: threading.Event = field(default_factory=threading.Event)
    delay: float = 0.0
    held: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":  # it is well, and does not say what it serves
            status = 200 if scope["path"] == "/health" else 404
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body = json.loads((await receive())["body"])
        self.asked.append(body | {"path": scope["path"]})
        self.request_ids += [value.decode() for name, value in scope["headers"] if name == b"x-request-id"]
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
            while index == 49 and self.held.is_set() and not gone.done():  # noqa: ASYNC110  set by a test, in another thread
                await asyncio.sleep(0.01)
            if gone.done():
                self.abandoned.set()
                return
            chunk = f"data: {index}\n\n" if body.get("stream") else json.dumps({"served": body["model"]})
            await send({"type": "http.response.body", "body": chunk.encode(), "more_body": True})
            await asyncio.sleep(0.02 if body.get("stream") else 0)
        await send({"type": "http.response.body", "body": b""})


class Addressed(Protocol):
    """A stand-in for a replica, with its own URL."""

    url: str


AnyReplica = TypeVar("AnyReplica", bound=Addressed)


def running(replica: AnyReplica) -> Iterator[AnyReplica]:
    """Yield a replica on a real socket."""
    for url in serve(replica):
        replica.url = url
        yield replica


def client_of(app: FastAPI, replica_url: str, key_name: str = "test") -> Iterator[httpx.Client]:
    """Yield a client of the API on a real socket, so that a disconnect is real, with a key and one replica."""
    services = app.state.services
    services.settings.serving_urls[:] = [replica_url]  # read at the first request
    _, secret = services.keys.create(key_name)
    for url in serve(app, lifespan="on"):
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=60) as client:
            yield client


def register_adapters(app: FastAPI) -> None:
    """Register adapters as the results of one job, with the alias ``helper`` for the last one."""
    leases = Leases(app.state.services.database, 60)
    submission = Submission(kind=Kind.FINETUNE, base_model=BASE, name="helper", contract={}, plan={})
    job, _ = app.state.services.jobs.submit(submission)
    lease = leases.claim(job.id, "w")
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
    leases.finish(lease, {}, adapters=adapters, alias="helper")

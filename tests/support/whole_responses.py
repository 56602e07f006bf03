"""Requests of starlette's `TestClient` whose response is read as a whole, in one call to the thread in which the
application runs.

By default, `TestClient` makes eight such calls per request, each with two thread switches, which is more than half of
the time of most requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import httpx2
from starlette.testclient import TestClient, _TestClientTransport

WHOLE = "mens.whole"
"""Extension of a request whose response is not read in pieces."""
PORTS = {"http": 80, "https": 443}


@contextmanager
def whole_responses() -> Iterator[None]:
    """In the block, requests that do not use `TestClient.stream` are run as a whole."""
    piecewise, request = _TestClientTransport.handle_request, TestClient.request

    def request_whole(self: TestClient, *arguments: Any, extensions: dict[str, Any] | None = None, **more: Any) -> Any:
        return request(self, *arguments, extensions={**(extensions or {}), WHOLE: True}, **more)

    def handle_request(self: _TestClientTransport, request: httpx2.Request) -> httpx2.Response:
        if WHOLE not in request.extensions or request.url.scheme not in PORTS:
            return piecewise(self, request)
        request.read()
        with self.portal_factory() as portal:
            return portal.call(_respond, self, request)

    with (
        patch.object(TestClient, "request", request_whole),
        patch.object(_TestClientTransport, "handle_request", handle_request),
    ):
        yield


async def _respond(transport: _TestClientTransport, request: httpx2.Request) -> httpx2.Response:
    status: dict[str, Any] = {}
    body: list[bytes] = []
    is_read, is_complete = False, asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if is_read:
            await is_complete.wait()
            return {"type": "http.disconnect"}
        is_read = True
        return {"type": "http.request", "body": request.content}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert not status, "a second response is begun"
            status.update(message)
        elif message["type"] == "http.response.body":
            assert status, "a body without a response"
            assert not is_complete.is_set(), "more of a response that is complete"
            body.append(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                is_complete.set()

    try:
        await transport.app(_scope(transport, request), receive, send)
    except Exception:
        if transport.raise_server_exceptions:
            raise
    if not status:
        assert not transport.raise_server_exceptions, "no response"
        return httpx2.Response(500, content=b"", request=request)
    headers = [(name.decode(), value.decode()) for name, value in status.get("headers", [])]
    content = b"" if request.method == "HEAD" else b"".join(body)
    return httpx2.Response(status["status"], headers=headers, stream=httpx2.ByteStream(content), request=request)


def _scope(transport: _TestClientTransport, request: httpx2.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": request.method,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "root_path": transport.root_path,
        "scheme": request.url.scheme,
        "query_string": request.url.query,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": transport.client,
        "server": [request.url.host, request.url.port or PORTS[request.url.scheme]],
        "extensions": {},
        "state": transport.app_state.copy(),
    }

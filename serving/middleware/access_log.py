"""A replica's access log: one line per request, except health checks, with the same request id as in the API's log.

It replaces uvicorn's access log, which has no request ids. The ids in vLLM's own messages contain the request id.
"""

from __future__ import annotations

import logging
import time

from serving.middleware.asgi_types import App, Message, Receive, Scope, Send

ID_HEADER = b"x-request-id"
MAX_ID_BYTES = 160
"""Number of characters of an id that are logged. The API's ids are shorter; a direct client of a replica may send any
string.
"""
UNLOGGED = frozenset({"/health", "/metrics", "/mens/limits"})
"""Routes that are not logged: they are requested every few seconds, and their lines would hide important ones."""

log = logging.getLogger("vllm.mens.access")


async def run_logged(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an application for one HTTP request, then log the request, also after an error."""
    if scope["path"] in UNLOGGED:
        await app(scope, receive, send)
        return
    started, status = time.perf_counter(), 0

    async def send_and_note(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        await send(message)

    try:
        await app(scope, receive, send_and_note)
    finally:
        request_id = next((value for name, value in scope["headers"] if name.lower() == ID_HEADER), b"")[:MAX_ID_BYTES]
        path = scope.get("raw_path") or scope["path"].encode()
        milliseconds = (time.perf_counter() - started) * 1000
        # %a escapes line breaks, so that the caller's strings cannot start a new line of the log.
        log.info(
            "%s %a %d %.0f ms %a",
            scope["method"],
            path.decode("latin-1"),
            status,
            milliseconds,
            request_id.decode("latin-1"),
            extra={
                "method": scope["method"],
                "status": status,
                "seconds": round(milliseconds / 1000, 6),
                "request_id": request_id.decode("latin-1"),
            },
        )

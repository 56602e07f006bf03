"""Access log: every response has an ``x-request-id``, and every request a line in the log with it, and counts in the
metrics.
"""

from __future__ import annotations

import logging
import os
import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ERROR_CODE
from api.inference.gateway import REQUEST_ID
from api.metrics.requests import STREAM_TYPES, ApiMetrics, FinishedRequest
from api.web.request_span import begin_request_span, end_request_span
from shared.observability.log_context import begin_ids, end_ids
from shared.observability.tracing import is_tracing

ID_HEADER = b"x-request-id"
CALLERS_ID = re.compile(rb"[!-~]{1,128}")
"""Callers' ids that are kept: visible ASCII. They also go into headers and logs of other processes."""

logger = logging.getLogger(__name__)


class AccessLog:
    """Middleware that gives every request an id, the caller's own if it sent up to 128 visible ASCII characters, and
    logs the request after its response.

    Uvicorn would log before it sends the first byte; here no response waits for the log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == ID_HEADER), b"")
        request_id = given if CALLERS_ID.fullmatch(given) else b"req_" + os.urandom(16).hex().encode()
        scope.setdefault("state", {})[REQUEST_ID] = request_id.decode()
        started, status = time.perf_counter(), 0
        is_stream, first_byte = False, None

        async def send_with_id(message: Message) -> None:
            nonlocal status, is_stream, first_byte
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [pair for pair in message.get("headers", []) if pair[0] != ID_HEADER]
                is_stream = any(name == b"content-type" and value.startswith(STREAM_TYPES) for name, value in headers)
                message["headers"] = [*headers, (ID_HEADER, request_id)]
                await send(message)
                return
            await send(message)
            if is_stream and first_byte is None and message.get("body"):
                first_byte = time.perf_counter() - started
                if opened is not None:
                    opened.add_event("first byte")

        token = begin_ids(request_id=request_id.decode())
        opened, entered = begin_request_span(scope) if is_tracing() else (None, None)
        try:
            return await self._app(scope, receive, send_with_id)
        finally:
            # A caller's input must stay on the request's line: the path as it was sent, the id quoted.
            seconds, route = time.perf_counter() - started, scope.get("route")
            known = None if route is None else route.path
            metrics: ApiMetrics = scope["app"].state.services.metrics
            metrics.finished(FinishedRequest(known, scope["method"], status, scope["state"], seconds, first_byte))
            client, path = (scope.get("client") or ("-",))[0], scope.get("raw_path", b"").decode("latin-1")
            milliseconds, quotable = seconds * 1000, request_id.decode("latin-1")
            # Fields of their own in JSON lines; the text has them already.
            fields = {"method": scope["method"], "route": known, "status": status, "seconds": round(seconds, 6)}
            if (code := scope["state"].get(ERROR_CODE)) is not None:
                fields["code"] = code
            logger.info(
                "%s %s %s %d %.1f ms %a", client, scope["method"], path, status, milliseconds, quotable, extra=fields
            )
            if opened is not None:
                end_request_span(opened, entered, fields)
            end_ids(token)

"""Exchange: one request and its response. The outermost middleware; every message passes through it once.

It gives the request its id, shows routes a path without a trailing slash, answers HEAD as GET without the body, adds the headers
that all responses have, turns an unhandled exception into a response, and writes the line of the access log.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import error_response_at, unexpected_error
from api.inference.gateway import REQUEST_ID
from api.metrics.requests import STREAM_TYPES
from api.web.access_log import log_request
from api.web.etags import with_etags
from api.web.head_requests import without_body
from api.web.request_span import begin_request_span, end_request_span
from api.web.response_headers import ID_HEADER, with_own_headers
from shared.observability.log_context import begin_ids, end_ids
from shared.observability.tracing import is_tracing

CALLERS_ID = re.compile(rb"[!-~]{1,128}")
"""Pattern of callers' ids that are kept: visible ASCII. They also go into headers and logs of other processes."""


class ExchangeMiddleware:
    """Middleware that gives every request an id, the caller's own if it sent up to 128 visible ASCII characters, and
    completes and logs its response.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        sent_id = next((value for name, value in scope["headers"] if name == ID_HEADER), b"")
        request_id = sent_id if CALLERS_ID.fullmatch(sent_id) else b"req_" + os.urandom(16).hex().encode()
        scope.setdefault("state", {})[REQUEST_ID] = request_id.decode()
        token = begin_ids(request_id=request_id.decode())
        span, entered = begin_request_span(scope) if is_tracing() else (None, None)
        routed = _as_routes_see_it(scope)
        exchange = Exchange(routed, send, request_id, span)
        try:
            return await self._respond(scope, routed, receive, exchange)
        finally:
            fields = log_request(scope, routed.get("route"), exchange.status, exchange.seconds(), exchange.first_byte)
            if span is not None:
                end_request_span(span, entered, fields)
            end_ids(token)

    async def _respond(self, scope: Scope, routed: Scope, receive: Receive, exchange: Exchange) -> None:
        send: Send = exchange.send
        if scope["method"] == "HEAD":
            receive, send = without_body(receive, send)
        try:
            await self._app(routed, receive, with_etags(routed, send) if routed["method"] == "GET" else send)
        except Exception as error:
            if exchange.has_begun:
                raise  # the connection is closed
            coded_error = unexpected_error(routed["method"], routed["path"], error)
            await error_response_at(routed["path"], coded_error)(routed, receive, send)


class Exchange:
    """The response to one request, as it is sent.

    Attributes:
        status: 0 before the response has begun.
        has_begun: whether a message was sent.
        first_byte: seconds until the first byte of a stream; None for other responses.
    """

    def __init__(self, scope: Scope, send: Send, request_id: bytes, span: Any) -> None:
        self._scope, self._send, self._request_id, self._span = scope, send, request_id, span
        self._started = time.perf_counter()
        self._is_stream = False
        self.status = 0
        self.has_begun = False
        self.first_byte: float | None = None

    def seconds(self) -> float:
        """Return the time since the request began."""
        return time.perf_counter() - self._started

    async def send(self, message: Message) -> None:
        """Send a message of the response."""
        self.has_begun = True
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            self._is_stream = any(name == b"content-type" and value.startswith(STREAM_TYPES) for name, value in headers)
            message["headers"] = await with_own_headers(headers, self._scope, self._request_id, self._started)
            await self._send(message)
            return
        await self._send(message)
        if self._is_stream and self.first_byte is None and message.get("body"):
            self.first_byte = self.seconds()
            if self._span is not None:
                self._span.add_event("first byte")


def _as_routes_see_it(scope: Scope) -> Scope:
    """Return the request without a trailing slash in its path, and GET in place of HEAD."""
    path, method = scope["path"], scope["method"]
    changes = {"path": path.rstrip("/") or "/"} if path.endswith("/") and path != "/" else {}
    if method == "HEAD":
        changes["method"] = "GET"
    return {**scope, **changes} if changes else scope

"""Request bodies: their largest size, by route, and their slowest rate."""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from api.body_buffers import Hold
from api.inference.strict_json import refuse_loose_json
from api.settings import ApiSettings
from api.web.multipart import MULTIPART_OVERHEAD_BYTES, file_too_large, part_too_large
from shared.errors import Code, MensError, TooLarge, TooSlow

MODEL_PATHS = frozenset(
    {
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/tokenize", "/v1/detokenize",
        "/api/chat", "/api/generate",
    }
)  # fmt: skip
FILES_PATH = "/v1/files"
JOBS_PATH = "/v1/jobs"
UPLOAD_ROWS = (
    "Upload the rows with POST /v1/files, or in parts with POST /v1/uploads, and name the file in the contract"
)
PART_PATH = re.compile(r"/v1/uploads/[^/]+/parts")
SLOWEST_BYTES_PER_SECOND = 16 << 10
"""A body that arrives more slowly than this times out."""
LONGEST_LENGTH = 18
"""Most digits of a Content-Length that is parsed."""


class BodyRule(NamedTuple):
    """Rule for a route's request body.

    Attributes:
        limit: largest body in bytes.
        is_streamed: whether the route reads it piece by piece; otherwise it is complete before the route is called.
        too_large: the error for a larger one.
    """

    limit: int
    is_streamed: bool
    too_large: MensError


def body_rule(settings: ApiSettings, path: str) -> BodyRule:
    """Return the body rule for the route of a path."""
    if path == FILES_PATH:
        limit = settings.max_file_bytes
        return BodyRule(limit + MULTIPART_OVERHEAD_BYTES, is_streamed=True, too_large=file_too_large(limit))
    if PART_PATH.fullmatch(path):
        limit = settings.max_part_bytes
        return BodyRule(limit + MULTIPART_OVERHEAD_BYTES, is_streamed=True, too_large=part_too_large(limit))
    name = "max_body_bytes" if path in MODEL_PATHS else "max_request_bytes"
    limit = getattr(settings, name)
    message = f"The request body is larger than {limit} bytes."
    shorter = UPLOAD_ROWS if path == JOBS_PATH else "Shorten it"
    remedy = f"{shorter}, or have the operator raise MENS_{name.upper()}."
    return BodyRule(limit, is_streamed=False, too_large=TooLarge(Code.BODY_TOO_LARGE, message, remedy=remedy))


async def limited_receive(scope: Scope, receive: Receive, rule: BodyRule, seconds: float, hold: Hold) -> Receive:
    """Return the function that the application receives a body from; a body that is not streamed has arrived completely
    on return.

    Args:
        scope: the request's scope.
        receive: the server's function.
        rule: the route's rule.
        seconds: longest silence, and allowance over :data:`SLOWEST_BYTES_PER_SECOND`.
        hold: counts the bytes of a body that is not streamed, before they arrive if their number is declared.

    Raises:
        TooSlow: ``REQUEST_TIMEOUT``. For a streamed body, the returned function raises them too.
        ClientDisconnect: the client has gone.
    """
    has_body, length = False, b"0"
    for name, value in scope["headers"]:
        if name == b"content-length":
            has_body, length = value != b"0", value
        elif name == b"transfer-encoding":
            has_body = True
    if not has_body:
        return receive
    if len(length) > LONGEST_LENGTH or (length.isdigit() and int(length) > rule.limit):
        raise rule.too_large
    body = _LimitedBody(receive, rule, seconds)
    if rule.is_streamed:
        return body.receive
    is_declared = length.isdigit() and length != b"0"
    if is_declared:
        hold(int(length))
    content = await body.read((lambda _: None) if is_declared else hold)
    if scope["path"] not in MODEL_PATHS:
        refuse_loose_json(content)
    return _replay(content, receive)


class _LimitedBody:
    """A body that is received within its size and time limits."""

    def __init__(self, receive: Receive, rule: BodyRule, seconds: float) -> None:
        self._receive = receive
        self._rule = rule
        self._seconds = seconds
        self._size = 0
        self._is_complete = False
        self._began = asyncio.get_running_loop().time()

    async def read(self, hold: Hold) -> bytes:
        """Read the whole body, whose bytes ``hold`` counts as they arrive."""
        pieces = bytearray()
        while not self._is_complete:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            hold(len(message.get("body", b"")))
            pieces += message.get("body", b"")
        return bytes(pieces)

    async def receive(self) -> Message:
        """Return the next message; after the body's end, only the client's disconnect."""
        if self._is_complete:
            return await self._receive()
        lead = self._began + self._seconds + self._size / SLOWEST_BYTES_PER_SECOND
        silence = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(min(lead, silence)):
                message = await self._receive()
        except TimeoutError:
            raise _too_slow(self._seconds) from None
        self._size += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._size > self._rule.limit:
            raise self._rule.too_large
        return message


def _replay(body: bytes, receive: Receive) -> Receive:
    message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def replay() -> Message:
        nonlocal message
        if message is None:
            return await receive()
        first, message = message, None
        return first

    return replay


def _too_slow(seconds: float) -> TooSlow:
    return TooSlow(
        Code.REQUEST_TIMEOUT,
        f"The request's body arrived too slowly: {seconds:g} s of silence, or less than {SLOWEST_BYTES_PER_SECOND} bytes per second.",
        remedy="Send it without pauses.",
    )

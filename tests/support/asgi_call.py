"""One call of an ASGI application without a server."""

from __future__ import annotations

import json
from typing import Any


class AsgiResponse:
    """The messages that an application sent.

    Attributes:
        messages: its messages, in order.
        status, headers, body: parts of an HTTP response.
    """

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.status = messages[0].get("status")
        self.headers: dict[bytes, bytes] = dict(messages[0].get("headers", []))
        self.body: bytes = messages[-1].get("body", b"")

    @property
    def error(self) -> dict[str, Any]:
        """The error of a refusal."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


async def call_asgi(
    application: Any,
    method: str,
    path: str,
    *,
    key: str | None = None,
    body: bytes = b"",
    **scope: Any,
) -> AsgiResponse:
    """Send one request; ``key`` is its bearer token, and ``scope`` overrides fields of the ASGI scope."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    fields = {"type": "http", "method": method, "path": path, "headers": headers, "raw_path": path.encode()}
    await application(fields | scope, receive, send)
    return AsgiResponse(sent)

"""A replica with prepared answers."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ScriptedReplica:
    """An ASGI application that answers every POST with ``pieces``; all but the first are sent only once ``go_on`` is
    set.

    Attributes:
        breaks: whether the connection is cut after the last piece.
        asked: paths and bodies.
        abandoned: set once a caller has disconnected, or has received the whole response.
    """

    pieces: list[bytes] = field(default_factory=list)
    status: int = 200
    breaks: bool = False
    go_on: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    abandoned: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.go_on.set()

    def answers(self, body: Any, status: int = 200) -> None:
        """Respond with JSON."""
        self.pieces, self.status = [json.dumps(body).encode()], status

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await self._send(send, 200, [b""])
            await send({"type": "http.response.body", "body": b""})
            return
        message = await receive()
        self.asked.append((scope["path"], json.loads(message["body"])))
        gone = asyncio.ensure_future(receive())
        gone.add_done_callback(lambda _: self.abandoned.set())
        await self._send(send, self.status, self.pieces)
        if self.breaks:
            raise RuntimeError("the replica dies here")
        await send({"type": "http.response.body", "body": b""})
        gone.cancel()

    async def _send(self, send: Any, status: int, pieces: list[bytes]) -> None:
        is_stream = bool(pieces) and pieces[0].startswith((b"data: ", b"event: "))
        headers = [(b"content-type", b"text/event-stream")] if is_stream else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for index, piece in enumerate(pieces):
            if index:
                await asyncio.to_thread(self.go_on.wait, 60)
            await send({"type": "http.response.body", "body": piece, "more_body": True})

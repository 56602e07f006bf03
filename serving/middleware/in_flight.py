"""Requests in flight at this replica, counted by model, and the models that accept no new requests.

The model of a request is read from its body, the only place that names it reliably. So requests of the gateway, of the
publisher and of an operator are counted in the same way.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from serving.middleware.asgi_types import Message, Receive


class InFlightRequests:
    """Counts requests by model. Not thread-safe: everything runs in the event loop's thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._idle: dict[str, asyncio.Event] = {}
        self._closed_since: dict[str, float] = {}

    @contextmanager
    def track(self, model: str) -> Iterator[None]:
        """Count a request for a model while the block runs."""
        self._counts[model] += 1
        try:
            yield
        finally:
            self._counts[model] -= 1
            if not self._counts[model]:
                # Names without requests are dropped, because callers choose them and their number is unlimited.
                del self._counts[model]
                if idle := self._idle.pop(model, None):
                    idle.set()

    def count(self, model: str) -> int:
        """Return the number of requests for a model that have not ended."""
        return self._counts[model]

    def close(self, model: str) -> float:
        """Refuse new requests for a model from now on; return the seconds since the first such call for the model."""
        now = time.monotonic()
        return now - self._closed_since.setdefault(model, now)

    def reopen(self, model: str) -> None:
        """Accept requests for a model again."""
        self._closed_since.pop(model, None)

    def is_closed(self, model: str) -> bool:
        """Return whether new requests for a model are refused."""
        return model in self._closed_since

    async def wait_idle(self, model: str, seconds: float) -> bool:
        """Wait until no request for a model is in flight; return False if some are still in flight after this time."""
        if self._counts[model]:
            idle = self._idle.setdefault(model, asyncio.Event())
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await idle.wait()
        return not self._counts[model]


class _ModelField(msgspec.Struct):
    model: Any = None


def named_model(body: bytes) -> str | None:
    """Return the ``model`` in a request's JSON as vLLM will read it; None if vLLM cannot find a name."""
    try:
        model = msgspec.json.decode(body, type=_ModelField).model
    except (msgspec.MsgspecError, RecursionError):
        # Fall back to the standard library, which vLLM uses: it accepts NaN, UTF-16 and lone surrogates, which msgspec
        # refuses.
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return None
        model = value.get("model") if isinstance(value, dict) else None
    return model if isinstance(model, str) else None


async def read_body(receive: Receive) -> tuple[bytes, Receive] | None:
    """Read a request's whole body; return it with a ``receive`` that replays it, or None if the caller disconnected."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    body = b"".join(pieces)
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return unread.pop() if unread else await receive()

    return body, replay

"""The requests that are under way at this replica, by the model they ask for, and the models that take no new ones.

Which model a request asks for stands in its body and nowhere else that could be trusted: the front door, the publisher and
an operator's own call all count alike.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


class Traffic:
    """Counts requests; all of it runs in the event loop's one thread."""

    def __init__(self) -> None:
        self._under_way: Counter[str] = Counter()
        self._idle: dict[str, asyncio.Event] = {}
        self._closed_since: dict[str, float] = {}

    @contextmanager
    def request(self, model: str) -> Iterator[None]:
        """One request for a model, from here to its end."""
        self._under_way[model] += 1
        try:
            yield
        finally:
            self._under_way[model] -= 1
            if not self._under_way[model]:
                del self._under_way[model]
                if waited_for := self._idle.pop(model, None):
                    waited_for.set()

    def under_way(self, model: str) -> int:
        """Requests for a model that have not ended."""
        return self._under_way[model]

    def close(self, model: str) -> float:
        """Take no new requests for a model; seconds since that began."""
        now = time.monotonic()
        return now - self._closed_since.setdefault(model, now)

    def reopen(self, model: str) -> None:
        """Take requests for a model again."""
        self._closed_since.pop(model, None)

    def is_closed(self, model: str) -> bool:
        """Whether a model takes no new requests."""
        return model in self._closed_since

    async def wait_idle(self, model: str, seconds: float) -> bool:
        """Wait until no request for a model is under way; False when there are some still after so many seconds."""
        if self._under_way[model]:
            idle = self._idle.setdefault(model, asyncio.Event())
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await idle.wait()
        return not self._under_way[model]


class _Named(msgspec.Struct):
    model: Any = None


def named_model(body: bytes) -> str | None:
    """What ``model`` says in a request's JSON, as vLLM will read it; None when vLLM will find no name either."""
    try:
        model = msgspec.json.decode(body, type=_Named).model
    except (msgspec.MsgspecError, RecursionError):  # stricter than the standard library, by which vLLM goes
        model = _model_of(body)
    return model if isinstance(model, str) else None


def _model_of(body: bytes) -> Any:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value.get("model") if isinstance(value, dict) else None


async def read_body(receive: Receive) -> tuple[bytes, Receive] | None:
    """A request's whole body, and a ``receive`` that gives it once more; None when the caller has gone."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            body = b"".join(pieces)
            return body, _once_more(body, receive)


def _once_more(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again

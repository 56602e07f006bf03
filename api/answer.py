"""A replica's answer on its way to the caller: passed on as it comes, closed however that ends, cut when it breaks off."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable

from fastapi import Response
from starlette.types import Receive, Scope, Send

from api.limits import Admission
from api.presence import Presence
from api.problems import problem_event
from api.rejections import broken_off
from api.replica_client import Begun, BrokenOff
from api.taps import Tap

ADAPTER_HEADER = "x-mens-adapter"
EVENT_END = b"\n\n"
"""The replica may have broken off in the middle of an event."""


class Answer:
    """A replica's answer whose first bytes are here. It is read once, and closed once however that ends.

    Closing it early stops the engine.

    Attributes:
        status: HTTP status.
        headers: for the caller, names in lower case; ``x-mens-adapter`` among them.
        adapter: id of the adapter that answers; None for a base.
        presence: of the caller.

    Args:
        begun: what is read.
        tap: what the bytes run through.
        admission: left when all is read, or when this is closed.
        presence: forgotten when this is closed.
        then: awaited when all is read.
    """

    def __init__(
        self,
        begun: Begun,
        tap: Tap,
        admission: Admission,
        presence: Presence,
        *,
        adapter: str | None = None,
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.status = begun.status
        self.headers = {**begun.headers, **admission.headers}
        self.adapter = adapter
        if adapter:
            self.headers[ADAPTER_HEADER] = adapter
        self.presence = presence
        self._ended = False
        self._begun, self._tap, self._admission, self._then = begun, tap, admission, then

    def __aiter__(self) -> Answer:
        """The body's bytes as they come."""
        return self

    async def __anext__(self) -> bytes:
        """Raises:
        BrokenOff: the replica broke off, or was silent for too long.
        """
        while not self._ended:
            chunk = await self._begun.read_some()
            self._ended = not chunk
            if passed := self._tap(chunk) if chunk else self._tap.end():
                return passed
        await self._admission.leave()  # before the caller knows the end, and asks again
        then, self._then = self._then, None
        if then is not None:
            await then()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Let the replica go, and account for what was used."""
        self.presence.forget()
        self._begun.close()
        try:
            self._tap.close()
        finally:
            await self._admission.leave()


class PassedOn(Response):
    """A replica's bytes as they come, or what they are turned into. The answer is closed however this ends.

    A caller who goes away ends it. Of an answer that breaks off the caller is told: a stream has the error as its last event,
    and no end mark; of anything else the connection is cut.

    Args:
        answer: what is read and closed.
        content: what is sent: an iterator over ``answer``; the answer itself when None.
        headers: beside those of the answer, or instead of them; names in lower case.
    """

    def __init__(
        self, answer: Answer, content: AsyncIterable[bytes] | None = None, headers: dict[str, str] | None = None
    ) -> None:
        self.status_code = answer.status
        self.background = None
        everything = {**answer.headers, **(headers or {})}
        self.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in everything.items()]
        self._is_stream = everything.get("content-type", "").startswith("text/event-stream")
        self._answer = answer
        self._content = answer if content is None else content

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        is_broken = False
        try:
            await self._answer.presence.unless_gone(self._pass_on(send))
        except BrokenOff:
            is_broken = True
        finally:
            await self._answer.aclose()  # before the caller knows the end, and asks again
        if is_broken and self._is_stream:  # else it stays without an end, and the server closes the connection
            await send({"type": "http.response.body", "body": EVENT_END + problem_event(broken_off())})

    async def _pass_on(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._content:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

"""A replica's answer on its way to the caller: passed on as it comes, closed however that ends, cut when it breaks off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import anyio
from fastapi import Response
from starlette.types import Receive, Scope, Send

from api.limits import Admission
from api.replica_client import Begun
from api.taps import Tap

PASSED_HEADERS = ("content-type", "x-request-id", "retry-after")
ADAPTER_HEADER = "x-mens-adapter"

Result = TypeVar("Result")


class Answer:
    """A replica's answer whose first bytes are here. It is read once, and closed once however that ends.

    Closing it early stops the engine.

    Attributes:
        status: HTTP status.
        headers: for the caller, names in lower case; ``x-mens-adapter`` among them.
        adapter: id of the adapter that answers; None for a base.

    Args:
        begun: what is read.
        tap: what the bytes run through.
        admission: left when all is read, or when this is closed.
        then: awaited when all is read.
    """

    def __init__(
        self,
        begun: Begun,
        tap: Tap,
        admission: Admission,
        *,
        adapter: str | None = None,
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.status = begun.status
        self.headers = {name: begun.headers[name] for name in PASSED_HEADERS if name in begun.headers}
        self.headers |= admission.headers
        self.adapter = adapter
        if adapter:
            self.headers[ADAPTER_HEADER] = adapter
        self._begun, self._tap, self._admission, self._then = begun, tap, admission, then

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come.

        Raises:
            BrokenOff: the replica broke off, or was silent for too long.
        """
        async for chunk in self._begun:
            if passed := self._tap(chunk):
                yield passed
        if rest := self._tap.end():
            yield rest
        await self._admission.leave()  # before the caller knows the end, and asks again
        if self._then is not None:
            await self._then()

    async def aclose(self) -> None:
        """Let the replica go, and account for what was used."""
        self._begun.close()
        self._tap.close()
        await self._admission.leave()


class PassedOn(Response):
    """A replica's bytes as they come, or what they are turned into. The answer is closed however this ends.

    A caller who goes away ends it; an answer that breaks off is broken off to the caller, whose connection is cut.

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
        self.init_headers({**answer.headers, **(headers or {})})
        self._answer = answer
        self._content = answer if content is None else content

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._pass_on(send))
        finally:
            await self._answer.aclose()

    async def _pass_on(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._content:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of ``work``; None when the caller has gone before: then it is cancelled.

    Args:
        receive: the request's, its body read.
    """
    with anyio.CancelScope() as scope:
        watch = asyncio.ensure_future(_disconnect(receive))
        watch.add_done_callback(lambda _: scope.cancel())
        try:
            return await work
        finally:
            watch.cancel()
    return None


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

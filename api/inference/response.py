"""A replica's response on its way to the caller: its tokens are counted, its bytes are sent as they arrive, and it is
closed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Self

from fastapi import Response
from starlette.types import Receive, Scope, Send

from api.errors import error_event, interrupted_response
from api.inference.disconnect import DisconnectWatcher
from api.inference.event_stream import EVENT_END, EVENT_STREAM
from api.inference.judged_copies import PassingAnswer
from api.inference.rate_limits.limiter import Admission
from api.inference.replicas.client import ReplicaDisconnected, ReplicaResponse
from api.inference.usage.taps import Tap
from shared.errors import MensError, Unauthenticated

ADAPTER_HEADER = "x-mens-adapter"
RECHECK_SECONDS = 1.0
"""Seconds between two checks of a stream's key, which may be revoked before the stream ends."""


class ProxiedResponse(Response):
    """A replica's response whose first bytes have arrived. It is read once, and closed once, even after an error.

    Awaited as an ASGI application it sends itself, or the body from :meth:`converted`, and closes itself. It ends when
    the caller disconnects, so vLLM stops generating, and when the key is no longer accepted, which a stream's last
    event reports. When the replica disconnects or its engine dies, a stream gets the error as its last event and no end
    mark; the connection of any other response is closed before its end.

    Attributes:
        passed_headers: headers for the caller, names in lower case, including ``x-mens-adapter``.

    Args:
        upstream: the replica's response.
        tap: processes the bytes as they pass.
        admission: released when everything is read, or when this response is closed.
        disconnect: watches the caller; stopped when this response is closed.
        adapter: id of the adapter that generates the response; None for a base.
        renamed: the replica's name of the model, and the name that replaces it in the response's ``model``; None:
            unchanged.
        recheck: checks the caller's key again, about once a second while a stream lasts; raises ``Unauthenticated``.
        passing: keeps the bytes as they pass; None: they are not kept.
        on_complete: awaited when everything is read.
    """

    def __init__(
        self,
        upstream: ReplicaResponse,
        tap: Tap,
        admission: Admission,
        disconnect: DisconnectWatcher,
        *,
        adapter: str | None = None,
        renamed: tuple[str, str] | None = None,
        recheck: Callable[[], Awaitable[None]] | None = None,
        passing: PassingAnswer | None = None,
        on_complete: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.status_code = upstream.status
        self.background = None
        self.passed_headers = dict(upstream.headers)
        if adapter:
            self.passed_headers[ADAPTER_HEADER] = adapter
        # No JSON parser is needed: the tap passes whole bodies or events, and inside a JSON string a quote is escaped.
        self._renamed = renamed and (_model_field(renamed[0]), _model_field(renamed[1]))
        self._content: AsyncIterable[bytes] = self
        self._upstream, self._tap, self._admission, self._disconnect = upstream, tap, admission, disconnect
        self._passing, self._on_complete = passing, on_complete
        self._recheck = recheck if upstream.headers.get("content-type", "").startswith(EVENT_STREAM) else None
        self._recheck_at = time.monotonic() + RECHECK_SECONDS
        self._ended = False

    def converted(self, content: AsyncIterable[bytes], headers: dict[str, str]) -> Self:
        """Return this response with another body: the bytes that an iterator makes from this one.

        Args:
            headers: added to the replica's headers, or replacing them; names in lower case.
        """
        self._content = content
        self.passed_headers |= headers
        return self

    def __aiter__(self) -> Self:
        """Iterate over the replica's bytes as they arrive, through the tap."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk for the caller; release the slot before the end."""
        while not self._ended:
            if self._tap.has_failed:
                raise self._upstream.failed()
            if self._recheck is not None and time.monotonic() >= self._recheck_at:
                await self._recheck()
                self._recheck_at = time.monotonic() + RECHECK_SECONDS
            chunk = await self._upstream.read_some()
            self._ended = not chunk
            if passed := self._tap(chunk) if chunk else self._tap.end():
                if self._passing is not None:
                    self._passing.add(passed)
                return passed if self._renamed is None else passed.replace(*self._renamed)
        # Before the caller sees the end: its next request may come at once, and needs the slot.
        await self._admission.release()
        on_complete, self._on_complete = self._on_complete, None
        if on_complete is not None:
            await on_complete()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the replica's response, count its usage, and release the slot."""
        self._disconnect.stop()
        self._upstream.close()
        try:
            self._tap.close()
        finally:
            await self._admission.release()

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send it."""
        is_stream = self.passed_headers.get("content-type", "").startswith(EVENT_STREAM)
        interruption: MensError | None = None
        try:
            await self._disconnect.run_until_disconnect(self._send(send))
        except ReplicaDisconnected:
            interruption = interrupted_response()
        except Unauthenticated as error:
            interruption = error
        finally:
            await self.aclose()  # before the caller sees the end, as in `__anext__`
        # A response without its last message makes the server close the connection: the caller sees it is incomplete.
        if interruption and is_stream:  # EVENT_END: it may have been interrupted in the middle of an event
            await send({"type": "http.response.body", "body": EVENT_END + error_event(interruption)})

    async def _send(self, send: Send) -> None:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.passed_headers.items()]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        async for chunk in self._content:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _model_field(name: str) -> bytes:
    return b'"model":"%s"' % name.encode()

"""Graceful shutdown of a replica: requests in flight can finish, and new ones are refused, so that another replica
takes them.

vLLM itself ends its engine first and then waits until its connections close, although their responses can no longer be
completed. Instead, after SIGTERM the server answers new requests, including health checks, with 503, so that the
gateway uses another replica. When no request is in flight, or after the drain time, vLLM gets SIGINT and stops in its
own way. Requests that are still in flight then get a visibly truncated response, or a 503 if no byte of the response
was sent yet. A SIGINT from outside skips the waiting.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from serving.middleware.asgi_types import Message, Send
from shared.errors import Code, Unavailable

POLL_SECONDS = 0.2

# A child of vLLM's logger, which is the only one with a handler.
log = logging.getLogger("vllm.mens.shutdown")


class GracefulShutdown:
    """Requests in flight, and the state of the server's shutdown. Used only in the server's event loop."""

    def __init__(self) -> None:
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._drained: set[asyncio.Task[Any]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._drain: asyncio.Task[None] | None = None
        self._engine_stops = False

    def handle_sigterm(self, drain_seconds: float) -> None:
        """Replace vLLM's handler of SIGTERM; vLLM still handles SIGINT. Called in the event loop when the server
        starts.

        Args:
            drain_seconds: time that requests in flight may take.
        """
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.begin, drain_seconds)

    def begin(self, drain_seconds: float) -> None:
        """Refuse new requests, and stop the server once no request is in flight. A second call has no effect."""
        if self._drain is None:
            log.info("Shutting down: %d requests in flight have %g s to finish.", len(self._drained), drain_seconds)
            self._drain = asyncio.create_task(self._drain_and_stop(drain_seconds))

    async def run(self, server: Any, send: Send, work: Callable[[Send], Awaitable[None]]) -> None:
        """Process a request until it is complete or the server stops.

        Args:
            server: uvicorn's server, whose flag shows that it stops; None in tests without a server.
            send: the ``send`` of the request.
            work: processes the request; its argument is the ``send`` to use.

        Raises:
            Unavailable: ``SERVING_UNAVAILABLE``: the server stops, and nothing was sent.
            CancelledError: the server stops after a part of the response was sent.
        """
        if server is None:
            return await work(send)
        if self._drain or self._engine_stops or server.should_exit:
            raise _shutting_down()
        self._watch = self._watch or asyncio.create_task(self._watch_server(server))
        task, has_begun = asyncio.current_task(), False
        assert task is not None

        async def observed_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        self._in_flight.add(task)
        try:
            await work(observed_send)
        except asyncio.CancelledError:
            # `_watch_server` cancelled the request, so the caller is still connected and can get a 503.
            if self._engine_stops and not has_begun:
                raise _shutting_down() from None
            raise
        finally:
            self._in_flight.discard(task)
            self._drained.discard(task)
        return None

    def include_in_drain(self) -> None:
        """Record that the current request has arrived completely: from now on, a shutdown waits for its response."""
        if (task := asyncio.current_task()) in self._in_flight and task is not None:
            self._drained.add(task)

    async def _drain_and_stop(self, seconds: float) -> None:
        if self._drained:
            await asyncio.wait(self._drained, timeout=seconds)
        if self._drained:
            log.warning(
                "Shutting down: %d requests did not finish within %g s and are cut off.", len(self._drained), seconds
            )
        # vLLM still handles SIGINT itself.
        signal.raise_signal(signal.SIGINT)

    async def _watch_server(self, server: Any) -> None:
        while not server.should_exit:  # noqa: ASYNC110, uvicorn has no event for it
            await asyncio.sleep(POLL_SECONDS)
        self._engine_stops = True
        for task in self._in_flight:
            task.cancel()


def _shutting_down() -> Unavailable:
    return Unavailable(
        Code.SERVING_UNAVAILABLE,
        "This replica is shutting down.",
        remedy="Send the request again; another replica may take it.",
    )

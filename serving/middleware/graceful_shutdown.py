"""Graceful shutdown of a replica: requests in flight may end, new ones are refused so that another replica takes them.

vLLM alone ends its engine first, and then waits until its connections have closed, although their responses can never
be completed. Here the server refuses new requests after SIGTERM: each gets a 503, health checks too, so that the
gateway uses another replica. When the requests in flight have ended, or their time is over, vLLM gets the signal to
stop in its own way. Requests that are still in flight then get a visibly truncated response, or a 503 if no byte of it
was sent yet. SIGINT skips the waiting.
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
    """Requests in flight, and the state of the server's shutdown. Used in its event loop."""

    def __init__(self) -> None:
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._drained: set[asyncio.Task[Any]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._drain: asyncio.Task[None] | None = None
        self._engine_stops = False

    def handle_sigterm(self, drain_seconds: float) -> None:
        """Take SIGTERM over from vLLM, which keeps SIGINT. Called when its server starts, in its event loop.

        Args:
            drain_seconds: time that requests in flight may take.
        """
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.begin, drain_seconds)

    def begin(self, drain_seconds: float) -> None:
        """Refuse new requests, and make the server stop once none is in flight. A second call changes nothing."""
        if self._drain is None:
            log.info("Shutting down: %d requests in flight have %g s to finish.", len(self._drained), drain_seconds)
            self._drain = asyncio.create_task(self._drain_and_stop(drain_seconds))

    async def run(self, server: Any, send: Send, work: Callable[[Send], Awaitable[None]]) -> None:
        """Process a request until it ends or the server stops.

        Args:
            server: the server of uvicorn, which has a flag for its stop; None without a server, as in a test.
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
            # `_watch_server` has cancelled the request, so the caller is still connected.
            if self._engine_stops and not has_begun:
                raise _shutting_down() from None
            raise
        finally:
            self._in_flight.discard(task)
            self._drained.discard(task)
        return None

    def include_in_drain(self) -> None:
        """Record that the current request has arrived completely: from now on a shutdown waits for its response."""
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

"""What becomes of requests when a replica is told to stop: those under way may end, new ones go to who can answer them.

vLLM by itself ends its engine first, and then waits until its connections have closed, whose answers nobody would ever
write. Here SIGTERM first closes the door: what comes is answered 503, health checks too, so that the front door asks another
replica. When what is under way has ended, or its time is over, vLLM is told to stop in its own way; what is left then is
broken off, visibly, or answered 503 where nothing was sent yet. SIGINT leaves the waiting out.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from shared.errors import Code, Unavailable

LOOK_SECONDS = 0.2

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger("vllm.mens.stopping")  # below vLLM's logger, which is the one with a handler


class Stopping:
    """Requests under way, and how far the server's stopping is. Used in its event loop."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()
        self._waited_for: set[asyncio.Task[Any]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._drain: asyncio.Task[None] | None = None
        self._has_come = False

    def take_over(self, drain_seconds: float) -> None:
        """Take SIGTERM from vLLM, which keeps SIGINT. Called when its server starts, in its event loop.

        Args:
            drain_seconds: how long requests under way may go on.
        """
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.begin, drain_seconds)

    def begin(self, drain_seconds: float) -> None:
        """Take no more requests, and have the server stop once none is under way. A second call changes nothing."""
        if self._drain is None:
            log.info("Stopping: %d requests under way have %g s.", len(self._waited_for), drain_seconds)
            self._drain = asyncio.create_task(self._stop_after(drain_seconds))

    async def pass_unless(self, server: Any, send: Send, work: Callable[[Send], Awaitable[None]]) -> None:
        """Do the work of a request, until the server stops.

        Args:
            server: uvicorn's, which says when it stops; None where there is none, as in a test.
            send: the request's.
            work: is given what to send by.

        Raises:
            Unavailable: ``SERVING_UNAVAILABLE``: it stops, and nothing was sent. CancelledError: it stops.
        """
        if server is None:
            return await work(send)
        if self._drain or self._has_come or server.should_exit:
            raise _stops()
        self._watch = self._watch or asyncio.create_task(self._look(server))
        task, begun = asyncio.current_task(), False
        assert task is not None

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        self._under_way.add(task)
        try:
            await work(noted)
        except asyncio.CancelledError:
            if self._has_come and not begun:
                raise _stops() from None
            raise
        finally:
            self._under_way.discard(task)
            self._waited_for.discard(task)
        return None

    def wait_for_this(self) -> None:
        """The request at hand is here as a whole: from now on a server that stops waits for its answer."""
        if (task := asyncio.current_task()) in self._under_way and task is not None:
            self._waited_for.add(task)

    async def _stop_after(self, seconds: float) -> None:
        if self._waited_for:
            await asyncio.wait(self._waited_for, timeout=seconds)
        if self._waited_for:
            log.warning("Stopping: %d requests have had %g s and are broken off.", len(self._waited_for), seconds)
        signal.raise_signal(signal.SIGINT)

    async def _look(self, server: Any) -> None:
        while not server.should_exit:  # noqa: ASYNC110, uvicorn has no event for it
            await asyncio.sleep(LOOK_SECONDS)
        self._has_come = True
        for task in self._under_way:
            task.cancel()


def _stops() -> Unavailable:
    return Unavailable(Code.SERVING_UNAVAILABLE, "This replica stops.", remedy="Ask again; another may answer.")

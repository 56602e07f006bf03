"""What becomes of requests when vLLM stops: they are cut, or passed on to who can answer them.

vLLM ends its engine first, and then waits until its connections have closed: nobody would ever answer those. A request
whose answer has not begun gets 503, so that the front door asks another replica; a stream is broken off, visibly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from shared.errors import Code, Unavailable

LOOK_SECONDS = 0.2

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Stopping:
    """Requests under way, and whether the server stops. Used in its event loop."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._has_come = False

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
        if self._has_come or server.should_exit:
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
        return None

    async def _look(self, server: Any) -> None:
        while not server.should_exit:  # noqa: ASYNC110, uvicorn has no event for it
            await asyncio.sleep(LOOK_SECONDS)
        self._has_come = True
        for task in self._under_way:
            task.cancel()


def _stops() -> Unavailable:
    return Unavailable(Code.SERVING_UNAVAILABLE, "This replica stops.", remedy="Ask again; another may answer.")

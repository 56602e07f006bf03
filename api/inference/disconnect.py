"""Whether the caller of a request is still there: work for one who has gone is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class Presence:
    """Watches one request's caller, from the first work for it until it is :meth:`forget`-ted.

    Args:
        receive: the request's, its body read.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self._working: asyncio.Task[Any] | None = None
        self._has_gone = self._cancelled = self._forgotten = False

    async def unless_gone(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """The result of ``work``; None when the caller goes before: then it is cancelled."""
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._working, self._cancelled = task, False
        asyncio.get_running_loop().call_soon(self._begin)  # when the work has to wait for something
        try:
            return await work
        except asyncio.CancelledError:
            if not self._cancelled or task.cancelling() > before + 1:  # somebody else has cancelled it
                raise
            return None
        finally:
            self._working = None
            if self._cancelled:
                task.uncancel()

    def forget(self) -> None:
        """Watch no more."""
        self._forgotten = True
        if self._watch is not None:
            self._watch.cancel()

    def _begin(self) -> None:
        if self._has_gone:
            self._end()
        elif self._watch is None and not self._forgotten:
            self._watch = asyncio.get_running_loop().create_task(self._disconnect())

    async def _disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._has_gone = True
        self._end()

    def _end(self) -> None:
        if self._working is not None and not self._cancelled:
            self._cancelled = True
            self._working.cancel()

"""Disconnect detection, which cancels the work for a caller who has disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class DisconnectWatcher:
    """Watches the caller of one request, from the first :meth:`run_until_disconnect` to :meth:`stop`.

    Args:
        receive: the request's ``receive``, after its body was read.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self._working: asyncio.Task[Any] | None = None
        self._disconnected = self._cancelled = self._stopped = False

    async def run_until_disconnect(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Return the result of ``work``; if the caller disconnects first, cancel the work and return None."""
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._working, self._cancelled = task, False
        # The watching task is created only when the work has to wait: most work does not.
        asyncio.get_running_loop().call_soon(self._begin)
        try:
            return await work
        except asyncio.CancelledError:
            # A cancellation from elsewhere, alone or together with ours, is passed on.
            if not self._cancelled or task.cancelling() > before + 1:
                raise
            return None
        finally:
            self._working = None
            if self._cancelled:
                # Handled here: code further out must not see a pending cancellation, for example at the end of a task
                # group.
                task.uncancel()

    def stop(self) -> None:
        """End the watch."""
        self._stopped = True
        if self._watch is not None:
            self._watch.cancel()

    def _begin(self) -> None:
        if self._disconnected:
            self._cancel()
        elif self._watch is None and not self._stopped:
            self._watch = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._disconnected = True
        self._cancel()

    def _cancel(self) -> None:
        if self._working is not None and not self._cancelled:
            self._cancelled = True
            self._working.cancel()

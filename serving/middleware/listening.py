"""Check that the server listens on its port once it has started.

vLLM binds its socket before it loads the engine, but listens on it only afterwards. In between, another program can
bind the same port and listen on it. uvloop ignores the error of its own listen call, so the server would run but be
unreachable.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.2

log = logging.getLogger("vllm.mens.listening")


class ListeningCheck:
    """A single check of the listening sockets, in the server's event loop."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self, server: Any, on_fault: Callable[[], None]) -> None:
        """Schedule the check for when the server has started.

        Args:
            server: the server of uvicorn.
            on_fault: called if the server does not listen.
        """
        self._task = asyncio.create_task(self._check(server, on_fault))

    def stop(self) -> None:
        """Cancel the check if it still waits for the server's start."""
        if self._task is not None:
            self._task.cancel()

    async def _check(self, server: Any, on_fault: Callable[[], None]) -> None:
        while not server.started:  # noqa: ASYNC110, uvicorn has no event for it
            await asyncio.sleep(POLL_SECONDS)
        if not listens(server):
            log.critical(
                "Another program has taken port %d. This replica exits, so that it is started again.",
                server.config.port,
            )
            on_fault()


def listens(server: Any) -> bool:
    """Return whether each socket of a started uvicorn server accepts connections."""
    sockets = [bound_socket for listener in server.servers for bound_socket in listener.sockets]
    return all(map(_takes_connections, sockets))


def _takes_connections(listener: socket.socket | None) -> bool:
    if listener is None:  # uvloop's socket is in this state after its listen call has failed
        return False
    return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

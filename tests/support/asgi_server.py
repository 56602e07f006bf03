"""An ASGI application on a real socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

import uvicorn


def serve(application: Any, lifespan: Literal["on", "off"] = "off") -> Iterator[str]:
    """Yield the URL of an application that a thread serves on a free loopback port."""
    config = uvicorn.Config(application, port=0, log_level="error", lifespan=lifespan)
    yield from run_server(uvicorn.Server(config), is_patient=lifespan == "on")


def run_server(server: uvicorn.Server, *, is_patient: bool = False) -> Iterator[str]:
    """Yield the URL of a server that runs in a thread. If ``is_patient``, responses in flight may finish."""
    served = _Thread(server, is_patient=is_patient)
    served.start()
    assert served.ready.wait(60), "the server does not start"
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    served.stop()


class _Ended(Exception):
    """Raised to leave uvicorn's main loop and its shutdown, both of which sleep."""


class _Thread(threading.Thread):
    """Runs a server, and is notified of its start and end, for which uvicorn would poll ten times a second."""

    def __init__(self, server: uvicorn.Server, *, is_patient: bool) -> None:
        super().__init__(daemon=True)
        self._server, self._is_patient = server, is_patient
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self.ready = threading.Event()
        server.main_loop = self._until_stopped  # type: ignore[method-assign]

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                self._loop = runner.get_loop()
                runner.run(self._serve())
        finally:
            self.ready.set()

    def stop(self) -> None:
        """End the server, and wait until it has ended."""
        if self._loop and self.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
        self.join(60)

    async def _until_stopped(self) -> None:
        await self._server.on_tick(0)
        self.ready.set()
        await self._end.wait()
        raise _Ended

    async def _serve(self) -> None:
        server = self._server
        state = server.server_state
        with suppress(_Ended):
            await server.serve()
        for listener in server.servers:
            listener.close()
        # One that is open when its loop ends is a warning in some later test.
        for connection in list(state.connections):
            if self._is_patient:
                connection.shutdown()
            else:
                connection.transport.abort()
        while state.connections or (self._is_patient and state.tasks):  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.001)
        if self._is_patient:
            await server.lifespan.shutdown()

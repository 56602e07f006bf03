"""An ASGI application on a real socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, Literal

import uvicorn

from tests.support.waiting import eventually


def serve(application: Any, lifespan: Literal["on", "off"] = "off") -> Iterator[str]:
    """Yield the URL of an application that a thread serves on a free loopback port."""
    config = uvicorn.Config(application, port=0, log_level="error", lifespan=lifespan)
    yield from run_server(uvicorn.Server(config), is_patient=lifespan == "on")


def run_server(server: uvicorn.Server, *, is_patient: bool = False) -> Iterator[str]:
    """Yield the URL of a server that runs in a thread; a patient end lets responses in flight end."""
    thread = threading.Thread(target=_run, args=(server,), daemon=True)
    thread.start()
    eventually(lambda: server.started or not thread.is_alive(), seconds=30, what="the server starts")
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit, server.force_exit = True, not is_patient
    thread.join(5)


def _run(server: uvicorn.Server) -> None:
    async def serve_until_closed() -> None:
        await server.serve()
        # A forced exit waits for no connection; one that is open when its loop ends is a warning in some later test.
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        while server.server_state.connections:  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.001)

    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(serve_until_closed())

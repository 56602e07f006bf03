"""An ASGI application on a real socket."""

from __future__ import annotations

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
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually(lambda: server.started or not thread.is_alive(), seconds=30, what="the server starts")
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit, server.force_exit = True, not is_patient
    thread.join(5)

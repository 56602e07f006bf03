"""The check that a server listens, with uvicorn on vLLM's event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
import uvicorn
import uvloop

from serving.middleware.listening import ListeningCheck


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    """A socket as vLLM makes it: bound early, for another to listen on later."""
    with bind(0) as server:
        yield server


def bind(port: int) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    return server


async def start_and_check(bound: socket.socket) -> list[str]:
    server = uvicorn.Server(uvicorn.Config("starlette.applications:Starlette", factory=True, log_config=None))
    check = ListeningCheck()
    faults: list[str] = []

    def fault() -> None:
        faults.append("does not listen")

    check.start(server, fault)
    task = asyncio.create_task(server._serve([bound]))  # without signal handlers
    assert check._task is not None
    async with asyncio.timeout(20):
        await check._task
        server.should_exit = True
        await task
    return faults


def test_server_that_listens_has_no_fault(bound: socket.socket) -> None:
    assert uvloop.run(start_and_check(bound)) == []


def test_server_whose_port_was_taken_ends(bound: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    with bind(bound.getsockname()[1]) as other:
        other.listen()
        assert uvloop.run(start_and_check(bound)) == ["does not listen"]
    assert "Another program has taken port" in caplog.text


def test_check_of_a_server_that_never_started_ends_with_it() -> None:
    async def test() -> None:
        check = ListeningCheck()
        check.start(uvicorn.Server(uvicorn.Config("starlette.applications:Starlette")), pytest.fail)
        check.stop()
        assert check._task is not None
        with pytest.raises(asyncio.CancelledError):
            await check._task

    asyncio.run(test())

"""Graceful shutdown of a replica: no request is left waiting."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace

import pytest

from serving.middleware.graceful_shutdown import GracefulShutdown
from shared.errors import Code, Unavailable


def test_requests_pass_while_server_runs():
    async def test():
        shutdown, sent = GracefulShutdown(), []

        async def work(send):
            await send({"type": "http.response.start"})

        async def send(message):
            sent.append(message)

        await shutdown.run(SimpleNamespace(should_exit=False), send, work)
        await shutdown.run(None, send, work)
        assert len(sent) == 2

    asyncio.run(test())


@pytest.mark.parametrize(("has_begun", "error"), [(False, Unavailable), (True, asyncio.CancelledError)])
def test_waiting_request_ends_when_server_stops(has_begun, error):
    async def test():
        shutdown, server = GracefulShutdown(), SimpleNamespace(should_exit=False)

        async def work(send):
            if has_begun:
                await send({"type": "http.response.start"})
            await asyncio.Event().wait()

        async def send(_message):
            pass

        waiting = asyncio.create_task(shutdown.run(server, send, work))
        await asyncio.sleep(0.01)
        server.should_exit = True
        with pytest.raises(error):
            async with asyncio.timeout(5):
                await waiting
        with pytest.raises(Unavailable) as refused:
            await shutdown.run(server, send, work)
        assert refused.value.code == Code.SERVING_UNAVAILABLE

    asyncio.run(test())


def test_request_of_disconnected_caller_is_cancelled():
    async def test():
        shutdown, server = GracefulShutdown(), SimpleNamespace(should_exit=False)

        async def work(_send):
            await asyncio.Event().wait()

        waiting = asyncio.create_task(shutdown.run(server, None, work))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(test())


def test_drain_refuses_new_requests_and_waits_for_those_in_flight(signals):
    async def test():
        shutdown, server, over = GracefulShutdown(), SimpleNamespace(should_exit=False), asyncio.Event()

        async def work(_send):
            shutdown.include_in_drain()
            await over.wait()

        in_flight = asyncio.create_task(shutdown.run(server, None, work))
        await asyncio.sleep(0.01)
        shutdown.begin(60)
        with pytest.raises(Unavailable) as refused:
            await shutdown.run(server, None, work)
        assert refused.value.code == Code.SERVING_UNAVAILABLE
        await asyncio.sleep(0.05)
        assert not signals, "a request is in flight"
        over.set()
        await in_flight
        await asyncio.sleep(0.05)
        assert signals == [signal.SIGINT]

    asyncio.run(test())


def test_drain_ends_after_its_time(signals):
    async def test():
        shutdown, server = GracefulShutdown(), SimpleNamespace(should_exit=False)

        async def work(_send):
            shutdown.include_in_drain()
            await asyncio.Event().wait()

        in_flight = asyncio.create_task(shutdown.run(server, None, work))
        await asyncio.sleep(0.01)
        shutdown.begin(0.01)
        shutdown.begin(60)
        await asyncio.sleep(0.1)
        assert signals == [signal.SIGINT]
        assert not in_flight.done(), "vLLM ends its engine first"
        in_flight.cancel()

    asyncio.run(test())


def test_incomplete_request_is_not_waited_for(signals):
    async def test():
        shutdown, server = GracefulShutdown(), SimpleNamespace(should_exit=False)
        half = asyncio.create_task(shutdown.run(server, None, lambda _send: asyncio.Event().wait()))
        await asyncio.sleep(0.01)
        shutdown.begin(60)
        await asyncio.sleep(0.05)
        assert signals == [signal.SIGINT]
        server.should_exit = True
        with pytest.raises(Unavailable):
            async with asyncio.timeout(5):
                await half

    asyncio.run(test())


def test_sigterm_begins_drain(signals):
    async def test():
        shutdown = GracefulShutdown()
        shutdown.handle_sigterm(60)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert signals == [signal.SIGINT], "nothing was in flight"

    asyncio.run(test())


@pytest.fixture
def signals():
    """The interrupts that were received."""
    received = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    yield received
    signal.signal(signal.SIGINT, before)

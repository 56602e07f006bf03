"""A server that stops leaves nobody waiting."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from serving.stopping import Stopping
from shared.errors import Code, Unavailable
from tests.serving.conftest import start_server
from tests.serving.test_orphans import ends


def test_nothing_is_cut_while_it_runs():
    async def test():
        stopping, sent = Stopping(), []

        async def work(send):
            await send({"type": "http.response.start"})

        async def send(message):
            sent.append(message)

        await stopping.pass_unless(SimpleNamespace(should_exit=False), send, work)
        await stopping.pass_unless(None, send, work)
        assert len(sent) == 2

    asyncio.run(test())


@pytest.mark.parametrize(("has_begun", "error"), [(False, Unavailable), (True, asyncio.CancelledError)])
def test_what_waits_is_ended(has_begun, error):
    async def test():
        stopping, server = Stopping(), SimpleNamespace(should_exit=False)

        async def work(send):
            if has_begun:
                await send({"type": "http.response.start"})
            await asyncio.Event().wait()

        async def send(_message):
            pass

        waiting = asyncio.create_task(stopping.pass_unless(server, send, work))
        await asyncio.sleep(0.01)
        server.should_exit = True
        with pytest.raises(error):
            async with asyncio.timeout(5):
                await waiting
        with pytest.raises(Unavailable) as refused:
            await stopping.pass_unless(server, send, work)
        assert refused.value.code == Code.SERVING_UNAVAILABLE

    asyncio.run(test())


def test_who_leaves_is_cancelled_as_ever():
    async def test():
        stopping, server = Stopping(), SimpleNamespace(should_exit=False)

        async def work(_send):
            await asyncio.Event().wait()

        waiting = asyncio.create_task(stopping.pass_unless(server, None, work))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(test())


def test_what_is_under_way_may_end_and_what_comes_is_refused(signals):
    async def test():
        stopping, server, over = Stopping(), SimpleNamespace(should_exit=False), asyncio.Event()

        async def work(_send):
            stopping.wait_for_this()
            await over.wait()

        under_way = asyncio.create_task(stopping.pass_unless(server, None, work))
        await asyncio.sleep(0.01)
        stopping.begin(60)
        with pytest.raises(Unavailable) as refused:
            await stopping.pass_unless(server, None, work)
        assert refused.value.code == Code.SERVING_UNAVAILABLE
        await asyncio.sleep(0.05)
        assert not signals, "something is under way"
        over.set()
        await under_way
        await asyncio.sleep(0.05)
        assert signals == [signal.SIGINT]

    asyncio.run(test())


def test_what_takes_too_long_is_not_waited_for(signals):
    async def test():
        stopping, server = Stopping(), SimpleNamespace(should_exit=False)

        async def work(_send):
            stopping.wait_for_this()
            await asyncio.Event().wait()

        under_way = asyncio.create_task(stopping.pass_unless(server, None, work))
        await asyncio.sleep(0.01)
        stopping.begin(0.01)
        stopping.begin(60)
        await asyncio.sleep(0.1)
        assert signals == [signal.SIGINT]
        assert not under_way.done(), "vLLM ends its engine first"
        under_way.cancel()

    asyncio.run(test())


def test_a_request_that_is_not_here_as_a_whole_is_not_waited_for(signals):
    async def test():
        stopping, server = Stopping(), SimpleNamespace(should_exit=False)
        half = asyncio.create_task(stopping.pass_unless(server, None, lambda _send: asyncio.Event().wait()))
        await asyncio.sleep(0.01)
        stopping.begin(60)
        await asyncio.sleep(0.05)
        assert signals == [signal.SIGINT]
        server.should_exit = True
        with pytest.raises(Unavailable):
            async with asyncio.timeout(5):
                await half

    asyncio.run(test())


def test_sigterm_is_taken_over(signals):
    async def test():
        stopping = Stopping()
        stopping.take_over(60)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert signals == [signal.SIGINT], "nothing was under way"

    asyncio.run(test())


@pytest.fixture
def signals():
    """The interrupts that have come."""
    came = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    yield came
    signal.signal(signal.SIGINT, before)


@pytest.mark.vllm
def test_a_stopped_vllm_cuts_its_streams_and_ends(lab):
    with start_server(lab, drain_seconds=1) as server, server.client() as client:
        begun, ended = threading.Event(), threading.Event()

        def read():
            body = {
                "model": lab.entry.name,
                "prompt": "Hi",
                "n": 16,
                "max_tokens": 200,
                "stream": True,
                "ignore_eos": True,
            }
            try:
                with client.stream("POST", "/v1/completions", json=body, timeout=60) as answer:
                    for _ in answer.iter_raw():
                        begun.set()
            except httpx.HTTPError:
                pass
            finally:
                ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(30)
        started = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        assert ended.wait(20), "the stream is cut"
        reader.join(5)
        assert ends(Path("/proc", str(server.pid)), 20), "the server ends"
        assert time.monotonic() - started < 20

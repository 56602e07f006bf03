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


@pytest.mark.vllm
def test_a_stopped_vllm_cuts_its_streams_and_ends(lab):
    with start_server(lab) as server, server.client() as client:
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

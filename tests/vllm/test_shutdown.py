"""A vLLM server that is told to stop while it streams."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import httpx

from tests.support.processes import is_gone
from tests.support.serving_installation import ServingInstallation
from tests.support.vllm_server import start_server
from tests.support.waiting import eventually

SECONDS = 20


def test_stopped_server_cuts_its_streams_and_exits(serving_installation: ServingInstallation) -> None:
    body: dict[str, Any] = {"model": serving_installation.entry.name, "prompt": "Hi", "n": 16, "max_tokens": 200}
    has_begun, has_ended = threading.Event(), threading.Event()
    with start_server(serving_installation, drain_seconds=1) as server, server.client() as client:

        def read() -> None:
            try:
                with client.stream(
                    "POST", "/v1/completions", json=body | {"stream": True, "ignore_eos": True}
                ) as stream:
                    for _ in stream.iter_raw():
                        has_begun.set()
            except httpx.HTTPError:
                pass
            finally:
                has_ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert has_begun.wait(30)
        started = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        assert has_ended.wait(SECONDS), "the stream is cut"
        reader.join(5)
        eventually(lambda: is_gone(server.pid), SECONDS, "the server exits")
        assert time.monotonic() - started < SECONDS

"""The replica's access log: one line per request, with its id."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from serving.middleware.access_log import run_logged
from serving.middleware.asgi_types import Receive, Scope, Send


async def answering(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def failing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise RuntimeError("broken")


def lines(
    caplog: pytest.LogCaptureFixture, app: Any, path: str = "/v1/completions", request_id: bytes = b"x"
) -> list[str]:
    async def ignore(_message: Any) -> None: ...

    caplog.set_level(logging.INFO, "vllm.mens.access")
    headers = [(b"x-request-id", request_id)]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
    try:
        asyncio.run(run_logged(app, scope, ignore, ignore))
    except RuntimeError:
        assert app is failing
    return [record.getMessage() for record in caplog.records if record.name == "vllm.mens.access"]


def test_request_is_one_line_with_its_id(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = lines(caplog, answering, request_id=b"req_1-ab")
    assert line.startswith("POST '/v1/completions' 418 ") and line.endswith(" ms 'req_1-ab'")


def test_request_that_fails_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = lines(caplog, failing)
    assert line.startswith("POST '/v1/completions' 0 ")


def test_health_checks_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert not lines(caplog, answering, "/health")


def test_caller_can_neither_write_a_line_nor_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = lines(caplog, answering, "/v1/\n", b"a\x85" + b"b" * 5000)
    assert "\n" not in line and len(line) < 300

"""The product's files whose code runs for one request, which a reader has to open to follow it."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import anyio.to_thread
import pytest

ROOT = Path(__file__).resolve().parents[2]
TIERS = tuple(f"{ROOT / tier}/" for tier in ("api", "cli", "serving", "shared", "worker"))
CHAT, JOB = 41, 103
"""Most files of a chat completion, and of the creation of a fine-tune job; CONTRIBUTING.md says why they are not fewer."""
RUN: ContextVar[set[str] | None] = ContextVar("RUN", default=None)
"""Paths of the files that have run for the current request; None in the server's background tasks."""


class FilesRun:
    """An ASGI application that records, for each request to another one, the files whose functions run: in the event
    loop, in worker threads, and in tasks that the request starts.

    Attributes:
        files: those of the latest request, from the root of the repository.
    """

    def __init__(self, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._app = app
        self.files: set[str] = set()
        monkeypatch.setattr(anyio.to_thread, "run_sync", partial(_run_sync, anyio.to_thread.run_sync))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        paths: set[str] = set()
        token = RUN.set(paths)
        sys.settrace(_note)
        try:
            await self._app(scope, receive, send)
        finally:
            sys.settrace(None)
            RUN.reset(token)
            self.files = {str(Path(path).relative_to(ROOT)) for path in paths}


async def _run_sync(run_sync: Any, function: Any, *arguments: Any, **options: Any) -> Any:
    """Run a function in a thread and record its files for the request too."""
    return await run_sync(partial(_traced, function), *arguments, **options)


def _traced(function: Any, *arguments: Any) -> Any:
    if RUN.get() is None:
        return function(*arguments)
    sys.settrace(_note)
    try:
        return function(*arguments)
    finally:
        sys.settrace(None)


def _note(frame: FrameType, _event: str, _argument: Any) -> None:
    """Record the file of a function call. The interpreter calls this for every call."""
    path = frame.f_code.co_filename
    if path.startswith(TIERS) and (paths := RUN.get()) is not None:
        paths.add(path)

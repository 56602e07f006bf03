"""The files of the product whose code runs for one request: those that a reader who follows the request has to open."""

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
RUN: ContextVar[set[str] | None] = ContextVar("RUN", default=None)
"""Files that have run for the current request, by their paths; background tasks of the server have none."""


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
    """Run a function in a thread, which records for the request too."""
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
    """Note the file of a call. The interpreter calls this for each call of a function."""
    path = frame.f_code.co_filename
    if path.startswith(TIERS) and (paths := RUN.get()) is not None:
        paths.add(path)

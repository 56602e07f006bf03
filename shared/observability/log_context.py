"""Ids in every log line of a piece of work: its request, job, attempt, adapter and tenant."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token

VARIABLE = "MENS_LOG_IDS"
"""Environment variable that gives a child process the ids of its attempt."""
NAMES = ("request_id", "tenant", "job_id", "attempt", "model", "adapter_id")
NONE: Mapping[str, str] = {}

_ids: ContextVar[Mapping[str, str]] = ContextVar("log_ids", default=NONE)


def current_ids() -> Mapping[str, str]:
    """Return the ids of the work in this task or thread."""
    return _ids.get()


@contextmanager
def log_ids(**ids: str) -> Iterator[None]:
    """Give the log lines of a block these ids too. Tasks and threads that `asyncio` starts inside the block have them
    too.
    """
    token = begin_ids(**ids)
    try:
        yield
    finally:
        end_ids(token)


def begin_ids(**ids: str) -> Token[Mapping[str, str]]:
    """Begin a block as :func:`log_ids` does, but without the cost of a context manager, which every request would pay."""
    return _ids.set({**_ids.get(), **ids})


def end_ids(token: Token[Mapping[str, str]]) -> None:
    """End a block that :func:`begin_ids` began."""
    _ids.reset(token)


def add_log_ids(**ids: str) -> None:
    """Add ids to the innermost block, so that its later log lines have them too."""
    block_ids = _ids.get()
    if block_ids is not NONE:
        assert isinstance(block_ids, dict)
        block_ids.update(ids)


def to_environment() -> dict[str, str]:
    """Return the environment variables that give a child process's log lines the same ids."""
    return {VARIABLE: json.dumps(dict(current_ids()))} if current_ids() else {}


def adopt_from_environment() -> None:
    """Adopt the ids of the parent process, for the whole life of this one."""
    if text := os.environ.get(VARIABLE):
        _ids.set({name: str(value) for name, value in json.loads(text).items() if name in NAMES})

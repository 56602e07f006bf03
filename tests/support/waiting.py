"""Waiting for a condition instead of for a time. The patience is what a busy machine may need: a test that passes does not use it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.2
PAUSE_SHARE = 0.05
"""Between two looks, of the time that was waited already: what takes seconds needs the processors more than whoever waits for it."""


def eventually(condition: Callable[[], T], seconds: float = PATIENCE_SECONDS, what: str = "the condition holds") -> T:
    """Poll until the condition returns something true, and return that.

    Raises:
        AssertionError: it did not within that time.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"waited {seconds:g} s until {what}"
        time.sleep(min(max(SHORTEST_PAUSE, waited * PAUSE_SHARE), LONGEST_PAUSE))
    return value


async def eventually_true(condition: Callable[[], object], what: str = "the condition holds") -> None:
    """The same in an event loop, which goes on meanwhile."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE_SECONDS, f"waited {PATIENCE_SECONDS:g} s until {what}"
        await asyncio.sleep(SHORTEST_PAUSE)

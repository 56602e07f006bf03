"""Wait for a condition instead of for a time. The timeout allows for a busy machine; a passing test does not use it up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.2
PAUSE_SHARE = 0.05
"""Pause between two checks, as a share of the time waited so far: a slow condition needs the processor more than its
waiter.
"""


def eventually(condition: Callable[[], T], seconds: float = PATIENCE_SECONDS, what: str = "the condition holds") -> T:
    """Poll until the condition returns a true value, and return that.

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
    """As above, in an event loop, which continues meanwhile."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE_SECONDS, f"waited {PATIENCE_SECONDS:g} s until {what}"
        await asyncio.sleep(SHORTEST_PAUSE)

"""Waiting for a condition instead of for a time. The patience is what a busy machine may need: a test that passes does not use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60.0


def eventually(condition: Callable[[], T], seconds: float = PATIENCE_SECONDS, what: str = "the condition holds") -> T:
    """Poll until the condition returns something true, and return that.

    Raises:
        AssertionError: it did not within that time.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s until {what}"
        time.sleep(0.01)
    return value

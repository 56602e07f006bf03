"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = 5.0, what: str = "the condition holds") -> T:
    """Poll until the condition returns something true, and return that.

    Raises:
        AssertionError: it did not within that time.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s until {what}"
        time.sleep(0.01)
    return value

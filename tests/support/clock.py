"""A clock that a test sets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass
class Clock:
    """The time that a test's database returns."""

    now: datetime

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

"""Progress of a program that is not ready yet: its log grows, or its processes compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

CHECK_SECONDS = 5.0
LEAST_CPU_SECONDS = 0.05
"""CPU seconds between two checks below which a process counts as idle."""


@dataclass
class StartProgress:
    """Progress of one program's start.

    Attributes:
        log_bytes: size of its log.
        pid: its process, 0 while it has none.
        began, advanced: clock seconds of its start, and of its last observed progress.
    """

    log_bytes: Callable[[], int]
    pid: Callable[[], int]
    began: float = field(default_factory=time.monotonic)
    advanced: float = field(default_factory=time.monotonic)
    _seen: tuple[int, float] = (0, 0.0)
    _checked: float = 0.0

    def stalled_seconds(self) -> float:
        """Return the seconds since its last observed progress; it is checked at most every `CHECK_SECONDS`."""
        now = time.monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            log, computed = self.log_bytes(), cpu_seconds(self.pid())
            if log != self._seen[0] or abs(computed - self._seen[1]) > LEAST_CPU_SECONDS:
                self._seen, self.advanced = (log, computed), now
        return now - self.advanced


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and all its descendants; 0 if it has ended."""
    seconds = 0.0
    try:
        process = psutil.Process(pid) if pid else None
        for member in [process, *process.children(recursive=True)] if process else []:
            times = member.cpu_times()
            seconds += times.user + times.system
    except psutil.Error:
        pass
    return seconds

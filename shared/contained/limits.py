"""Limits that a process sets for itself and its children, by the kernel; called in the child process."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def limit(kind: int, value: int) -> None:
    """Set a limit of `resource`, which cannot be raised again; a lower one that the process already has stays."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def limit_added_memory(more_bytes: int) -> None:
    """Limit the address space to its current size plus a number of bytes."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit(resource.RLIMIT_AS, mapped + more_bytes)


def limit_added_processor_time(seconds: int) -> None:
    """Have the kernel end this process after a number of further seconds of processor time; a later call replaces the
    limit.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Only the soft limit is set: a hard one could not be replaced by the next call.
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds, hard))


def end_after(processor_seconds: float, elapsed_seconds: float) -> None:
    """Have the kernel end this process when one of the two times from now is over; exact to milliseconds."""
    signal.setitimer(signal.ITIMER_PROF, processor_seconds)
    signal.setitimer(signal.ITIMER_REAL, elapsed_seconds)


def dump_nothing() -> None:
    """Write no core dump, which would contain what the process has read."""
    limit(resource.RLIMIT_CORE, 0)


def end_first(pid: int | None = None) -> None:
    """Make the kernel end a process, this one by default, before others when memory runs out."""
    # The process may have ended, or /proc may be missing.
    with suppress(OSError):
        Path("/proc", str(pid or "self"), "oom_score_adj").write_text("1000")


def end_with_parent(parent: int, signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; if that has happened, end it now.

    A change of the process's user clears the setting.

    Args:
        parent: pid of the process that started this one.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    # The parent may have ended before the kernel got the request.
    if os.getppid() != parent:
        os._exit(1)

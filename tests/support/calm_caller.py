"""A caller that sends one request after another while other callers attack, and measures how long each response takes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

Delays = dict[int, dict[int, float]]
"""Seconds of `thread_delays`, by process id and thread id."""


@dataclass
class CalmCaller:
    """Times are in seconds.

    Attributes:
        client: creates a client of the API.
        requests: arguments of ``httpx.Client.request``; each round sends all of them.
        servers: ids of the processes that handle a request, in order.
        slowest: the longest time that an answer took.
        longest_wait: the same, without the time in which this process and the servers were ready to run but the machine
            was busy with other work. For each process, this is the delay of its main thread plus that of its most
            delayed other thread, because a response may pass through one. Time that the servers compute for others is
            included, and so is waiting for a lock, a thread or the network.
        count: requests that were answered.
    """

    client: Callable[[], httpx.Client]
    requests: Sequence[tuple[str, str, dict[str, Any]]]
    servers: Sequence[int]
    slowest: float = field(default=0.0, init=False)
    longest_wait: float = field(default=0.0, init=False)
    count: int = field(default=0, init=False)

    def call(self) -> None:
        """Send each request once, over a new connection."""
        with self.client() as client:
            for method, path, body in self.requests:
                began, before = time.monotonic(), self._delays()
                response = client.request(method, path, **body)
                assert response.status_code == 200, response.text
                passed = time.monotonic() - began
                self.slowest = max(self.slowest, passed)
                self.longest_wait = max(self.longest_wait, passed - delayed(before, self._delays()))
                self.count += 1

    def forget(self) -> None:
        """Start measuring again from zero."""
        self.slowest, self.longest_wait, self.count = 0.0, 0.0, 0

    def _delays(self) -> Delays:
        return {pid: thread_delays(pid) for pid in (os.getpid(), *self.servers)}


def delayed(before: Delays, after: Delays) -> float:
    """Seconds by which processes were delayed between two readings: for each process its main thread, plus its most
    delayed other thread.
    """
    total = 0.0
    for pid, threads in after.items():
        passed = {thread: seconds - before[pid].get(thread, 0.0) for thread, seconds in threads.items()}
        total += passed.pop(pid, 0.0) + max(passed.values(), default=0.0)
    return total


def thread_delays(pid: int) -> dict[int, float]:
    """Seconds for which each thread of a process was ready to run but did not run, according to the kernel."""
    delays = {}
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            delays[int(path.parent.name)] = int(path.read_text().split()[1]) / 1e9
    return delays

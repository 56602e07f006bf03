"""A caller who sends one request after the other while others do their worst, and how long each answer takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx


@dataclass
class CalmCaller:
    """Times are in seconds.

    Attributes:
        client: makes a client of the API.
        requests: arguments of ``httpx.Client.request``; each is sent in a round.
        servers: ids of the processes that work for an answer, one after the other.
        slowest: the longest time that an answer took.
        longest_wait: the same without the time in which this process and the servers were ready to run and the machine was
            busy with other things. Computing for others counts, and so does waiting for a lock, a thread or the network.
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
                began, delayed = time.monotonic(), self._delayed()
                response = client.request(method, path, **body)
                assert response.status_code == 200, response.text
                passed, delayed = time.monotonic() - began, self._delayed() - delayed
                self.slowest = max(self.slowest, passed)
                self.longest_wait = max(self.longest_wait, passed - delayed)
                self.count += 1

    def forget(self) -> None:
        """Begin to measure anew."""
        self.slowest, self.longest_wait, self.count = 0.0, 0.0, 0

    def _delayed(self) -> float:
        return sum(map(run_delay, (os.getpid(), *self.servers)))


def run_delay(pid: int) -> float:
    """Seconds that a process's main thread has been ready to run and was not, by the kernel's count; 0 where it keeps none."""
    path = Path(f"/proc/{pid}/schedstat")
    return int(path.read_text().split()[1]) / 1e9 if path.exists() else 0.0

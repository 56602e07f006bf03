"""Time of work on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

TRIES, TOGETHER = 5, 5
"""Timed batches, and runs in each of them: so that the time to start a kernel is hidden as it is in training."""


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Return the median time of one run, after some that are not timed: a kernel is compiled when it first runs."""
    tries, together = (TRIES, TOGETHER) if device == "cuda" else (1, 1)
    seconds = []
    for _ in range(tries + 1):
        began = time.perf_counter()
        for _ in range(together):
            work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append((time.perf_counter() - began) / together)
    return statistics.median(seconds[1:])

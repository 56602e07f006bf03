"""Time of work on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

TRIES, TOGETHER = 5, 5
"""Timed batches, and runs in each of them: so that the launch time of kernels is hidden, as in training."""


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Return the median time of one run, after untimed runs in which kernels are compiled."""
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


def kernel_seconds_of(work: Callable[[], object], device: str) -> float:
    """Return the time of one run's kernels on a GPU, without launch overhead; on a CPU, the result of
    :func:`seconds_of`.
    """
    if device == "cpu":
        return seconds_of(work, device)
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(TOGETHER):
            work()
        torch.cuda.synchronize()
    return float(sum(event.self_device_time_total for event in profiler.key_averages())) / 1e6 / TOGETHER

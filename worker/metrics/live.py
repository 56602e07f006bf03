"""State of a worker's trainers and GPUs at the moment of a scrape."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.gpus.driver import Gpu, query_gpus, visible_gpus

# Each query starts the driver's program.
GPU_FRESH_SECONDS = 15.0
LIVE_FIELDS = {
    "tokens_per_sec": ("mens_training_tokens_per_second", "Tokens per second of the steps that run now."),
    "mfu": ("mens_training_mfu", "Share of the device's peak that the steps use, where the peak is known."),
    "peak_memory_bytes": ("mens_training_peak_memory_bytes", "Peak memory of the trainer on its device."),
}
"""Fields of a trainer's `step` event → name and meaning of the gauge."""


class TrainingNow(Collector):
    """Gauges of the running trainers. Without a trainer they have no samples, because a speed of 0 would be false."""

    def __init__(self) -> None:
        self._steps: dict[str, dict[str, Any]] = {}
        # Written by the threads of jobs, read by a scrape's.
        self._lock = threading.Lock()

    def note(self, job_id: str, step: dict[str, Any]) -> None:
        """Record the newest step of a job."""
        with self._lock:
            self._steps[job_id] = step

    def forget(self, job_id: str) -> None:
        """Forget a job whose trainer has ended."""
        with self._lock:
            self._steps.pop(job_id, None)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics at a scrape. A worker trains one job at a time; if several are noted, the one that started
        last is shown.
        """
        with self._lock:
            steps = list(self._steps.values())
        for field, (name, meaning) in LIVE_FIELDS.items():
            family = GaugeMetricFamily(name, meaning)
            values = [step[field] for step in steps if step.get(field) is not None]
            if values:
                family.add_metric([], values[-1])
            yield family

    def describe(self) -> Iterator[Metric]:
        """Return nothing: the values exist while a trainer runs."""
        return iter(())


class GpuMemory(Collector):
    """Memory of this machine's GPUs, as the driver's program reports it; no samples on a machine without a GPU.

    Args:
        query: returns the GPUs.
        count: returns the number of GPUs that CUDA exposes; with 0 the driver is not queried.
    """

    def __init__(self, query: Callable[[], list[Gpu]] = query_gpus, count: Callable[[], int] = visible_gpus) -> None:
        self._query, self._count = query, count
        self._queried_at = -GPU_FRESH_SECONDS
        self._gpus: list[Gpu] = []
        # Scrapes at the same time share one query of the driver.
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics at a scrape."""
        total = GaugeMetricFamily("mens_gpu_memory_bytes", "Memory of a GPU.", labels=("gpu", "name"))
        free = GaugeMetricFamily("mens_gpu_memory_free_bytes", "Free memory of a GPU.", labels=("gpu", "name"))
        for gpu in self._fresh():
            for family, size in ((total, gpu.total), (free, gpu.free)):
                if size is not None:
                    family.add_metric([gpu.number, gpu.name], size)
        yield total
        yield free

    def describe(self) -> Iterator[Metric]:
        """Return nothing: otherwise the registry would query the driver to learn the names."""
        return iter(())

    def _fresh(self) -> list[Gpu]:
        with self._lock:
            if time.monotonic() - self._queried_at >= GPU_FRESH_SECONDS:
                self._gpus = self._query() if self._count() else []
                self._queried_at = time.monotonic()
            return self._gpus

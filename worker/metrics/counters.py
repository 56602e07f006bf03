"""Counters of a worker process, and the registry of its metrics. docs/metrics.md lists every name."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from shared.database.job_states import Stage
from shared.database.records import Kind
from shared.database.webhooks.deliveries import Outcome
from shared.errors import MensError
from shared.observability.metrics_listener import process_registry
from worker.metrics.live import GpuMemory, TrainingNow

STAGE_SECONDS = (1.0, 5.0, 20.0, 60.0, 300.0, 1200.0, 3600.0, 14400.0, 43200.0)
SWEEP_SECONDS = (0.01, 0.05, 0.2, 1.0, 5.0, 20.0)


class WorkerMetrics:
    """Counters of a worker. A job's own figures are in its row; these are totals over all jobs."""

    def __init__(self) -> None:
        where = self.registry = process_registry()
        self.training = TrainingNow()
        where.register(self.training)
        where.register(GpuMemory())
        self._attempts = Counter(
            "mens_attempts", "Ended attempts at jobs, by outcome.", ("kind", "outcome"), registry=where
        )
        self._failures = Counter(
            "mens_attempt_failures", "Attempts that failed, by the error's code.", ("kind", "code"), registry=where
        )
        self._stages = Histogram(
            "mens_stage_seconds",
            "Seconds that attempts spent in a stage.",
            ("kind", "stage"),
            buckets=STAGE_SECONDS,
            registry=where,
        )
        self._steps = Counter("mens_training_steps", "Optimizer steps made by trainers.", registry=where)
        self._tokens = Counter(
            "mens_training_tokens", "Tokens of the optimizer steps made by trainers.", registry=where
        )
        self._sweep_seconds = Histogram(
            "mens_sweep_seconds", "Duration of sweeps in seconds.", buckets=SWEEP_SECONDS, registry=where
        )
        self._swept_at = Gauge(
            "mens_sweep_last_success_timestamp_seconds",
            "Time of the end of the last sweep; 0: no sweep has ended.",
            registry=where,
        )
        self._enqueued = Counter("mens_sweep_enqueued", "Jobs that a sweep sent to the queue again.", registry=where)
        self._expired = Counter(
            "mens_leases_expired", "Attempts that a sweep took from a silent worker.", ("kind",), registry=where
        )
        self._removed = Counter("mens_adapters_removed", "Deleted adapters whose files are removed.", registry=where)
        self._retained_out = Counter(
            "mens_retention_removed", "Objects that the retention policy has removed.", ("what",), registry=where
        )
        self._retained_out_bytes = Counter(
            "mens_retention_removed_bytes",
            "Bytes of the objects that the retention policy has removed.",
            registry=where,
        )
        self._disk_fault = Gauge(
            "mens_worker_disk_fault",
            "1 while the worker takes no job, because its run folders or the storage cannot be written; by code.",
            ("code",),
            registry=where,
        )
        self._webhooks = Counter(
            "mens_webhook_attempts",
            "Attempts to deliver a webhook: delivered, refused by the receiver, or unanswered.",
            ("outcome",),
            registry=where,
        )

    def attempt_ended(self, kind: Kind, outcome: str, code: str | None = None) -> None:
        """Count an ended attempt by its outcome (succeeded, retried, failed, cancelled, paused, released or lost) and
        the code of its error.
        """
        self._attempts.labels(str(kind), outcome).inc()
        if code is not None:
            self._failures.labels(str(kind), code).inc()

    def stages(self, kind: Kind) -> StageClock:
        """Return the clock of one attempt's stages."""
        return StageClock(lambda stage, seconds: self._stages.labels(str(kind), str(stage)).observe(seconds))

    def trained(self, job_id: str, telemetry: Sequence[dict[str, Any]]) -> None:
        """Count the steps in some lines of a trainer's telemetry."""
        steps = [line["payload"] for line in telemetry if line["event"] == "step"]
        if steps:
            self._steps.inc(len(steps))
            self._tokens.inc(sum(step.get("tokens") or 0 for step in steps))
            self.training.note(job_id, steps[-1])

    def expired(self, kind: str) -> None:
        """Count an attempt whose lease had expired."""
        self._expired.labels(kind).inc()

    def swept(self, seconds: float, enqueued: int) -> None:
        """Count a sweep that ended successfully."""
        self._sweep_seconds.observe(seconds)
        self._swept_at.set_to_current_time()
        self._enqueued.inc(enqueued)

    def disk_fault(self, fault: MensError | None) -> None:
        """Set the metric to the fault of this machine's disks, or clear it (None)."""
        self._disk_fault.clear()
        if fault is not None:
            self._disk_fault.labels(str(fault.code)).set(1)

    def removed_adapters(self, number: int) -> None:
        """Count permanently deleted adapters."""
        self._removed.inc(number)

    def retention_removed(self, what: str, size: int) -> None:
        """Count an object that the retention policy has removed, and its bytes."""
        self._retained_out.labels(what).inc()
        self._retained_out_bytes.inc(size)

    def attempted_webhook(self, outcome: Outcome) -> None:
        """Count an attempt to deliver a webhook by its outcome."""
        answered = "refused" if outcome.status_code else "unanswered"
        self._webhooks.labels("delivered" if outcome.is_delivered else answered).inc()


class StageClock:
    """Measures how long an attempt is in each stage.

    Args:
        observe: called with a stage and its seconds when the stage is over.
    """

    def __init__(self, observe: Callable[[Stage, float], None]) -> None:
        self._observe = observe
        self._stage: Stage | None = None
        self._since = 0.0

    def enter(self, stage: Stage | None) -> None:
        """Record the end of the previous stage and the start of ``stage``; None: the attempt has ended."""
        if self._stage is not None:
            self._observe(self._stage, time.monotonic() - self._since)
        self._stage, self._since = stage, time.monotonic()

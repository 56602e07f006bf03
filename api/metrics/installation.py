"""Readings of the installation at each scrape: jobs, queue and webhooks from the database, replicas as this process
sees them.

Every API process reports the same jobs and webhooks, so a query takes ``max``, never ``sum``, over them (docs/metrics.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.metrics.bounded_label import BoundedLabel
from shared.database.job_states import JobState
from shared.database.overview.job_counts import JobCounts
from shared.database.overview.webhook_counts import WebhookCounts
from shared.database.records import Kind
from shared.errors import Unavailable

T = TypeVar("T")
FRESH_SECONDS = 5.0
"""Scrapes within this time share one read of the database."""

logger = logging.getLogger(__name__)


class DatabaseReading(Generic[T]):
    """A reading of the database, shared by scrapes within a few seconds.

    Args:
        read: reads the database.
        what: name of the reading in the log.
    """

    def __init__(self, read: Callable[[], T], what: str) -> None:
        self._read, self._what = read, what
        # Scrapes at the same time share one reading.
        self._lock = threading.Lock()
        self._read_at = -FRESH_SECONDS
        self._last: T | None = None

    def fresh(self) -> T | None:
        """Return the reading; None if the database was unavailable."""
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                try:
                    self._last = self._read()
                except Unavailable as error:
                    logger.warning("metrics of %s are delayed by the database: %s", self._what, error.message)
                    self._last = None
                self._read_at = time.monotonic()
            return self._last


class JobsCollector(Collector):
    """Jobs, the queue and the workers. Scraped in the listener's threads, so that no request waits for the database.

    Args:
        count: reads the database.
        count_workers: returns the number of workers that report.
        tenants: bounds the tenants' label.
    """

    def __init__(self, count: Callable[[], JobCounts], count_workers: Callable[[], int], tenants: BoundedLabel) -> None:
        self._counts, self._count_workers, self._tenants = DatabaseReading(count, "jobs"), count_workers, tenants

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics at a scrape."""
        counts = self._counts.fresh()
        reachable = GaugeMetricFamily("mens_database_reachable", "1 if this process could read the database.")
        reachable.add_metric([], 0 if counts is None else 1)
        yield reachable
        workers = GaugeMetricFamily("mens_workers", "Workers that take jobs and have reported within 90 s.")
        workers.add_metric([], self._count_workers())
        yield workers
        if counts is not None:
            yield self._jobs(counts)
            yield from self._queue(counts)

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: otherwise the registry would scrape to find the names."""
        return iter(())

    def _jobs(self, job_counts: JobCounts) -> Metric:
        jobs: Counter[tuple[str, str, str]] = Counter()
        # The tenants with the most jobs come first: they get the remaining labels.
        for count in sorted(job_counts.counts, key=lambda count: -count.jobs):
            jobs[count.kind, count.state, self._tenants.of(count.tenant)] += count.jobs
        family = GaugeMetricFamily("mens_jobs", "Jobs in the database.", labels=("kind", "state", "tenant"))
        for labels, number in sorted(jobs.items()):
            family.add_metric(labels, number)
        return family

    def _queue(self, job_counts: JobCounts) -> Iterator[Metric]:
        """Yield depth and age of every kind, even without a job: an alert on a missing series never ends."""
        waiting = Counter({kind.value: 0 for kind in Kind})
        for count in job_counts.counts:
            if count.state == JobState.QUEUED:
                waiting[count.kind] += count.jobs
        ages = dict.fromkeys(waiting, 0.0) | {age.kind: age.seconds for age in job_counts.ages}
        depth = GaugeMetricFamily("mens_queue_jobs", "Queued jobs.", labels=("kind",))
        oldest = GaugeMetricFamily(
            "mens_queue_oldest_seconds",
            "Waiting time of the job that has been queued the longest, in seconds.",
            labels=("kind",),
        )
        for kind in sorted(waiting):
            depth.add_metric([kind], waiting[kind])
            oldest.add_metric([kind], ages[kind])
        yield depth
        yield oldest


class WebhooksCollector(Collector):
    """Deliveries of webhooks and their endpoints; scraped as jobs are.

    Args:
        count: reads the database.
    """

    def __init__(self, count: Callable[[], WebhookCounts]) -> None:
        self._counts = DatabaseReading(count, "webhooks")

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics at a scrape."""
        if (counts := self._counts.fresh()) is None:
            return
        yield _by_label(
            "mens_webhook_deliveries",
            "Deliveries of webhooks that are pending, or have ended in the last seven days.",
            "status",
            counts.deliveries,
        )
        yield _by_label(
            "mens_webhook_endpoints",
            "Endpoints of webhooks: enabled, disabled by their tenant, or failed, which disables them too.",
            "state",
            counts.endpoints,
        )
        oldest = GaugeMetricFamily(
            "mens_webhook_oldest_seconds", "Seconds since the longest-waiting delivery became due."
        )
        oldest.add_metric([], counts.oldest_seconds)
        yield oldest

    def describe(self) -> Iterator[Metric]:
        """Return no metrics, for the reason given in :meth:`JobsCollector.describe`."""
        return iter(())


def _by_label(name: str, text: str, label: str, values: Mapping[Any, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


class ReplicaNow(NamedTuple):
    """A replica at one moment: its URL, its state, and the number of this process's requests that it has."""

    url: str
    state: str
    in_flight: int


class ReplicasCollector(Collector):
    """The serving replicas as this process sees them.

    Args:
        read: returns the replicas' current states.
        states: all possible states.
    """

    def __init__(self, read: Callable[[], Iterable[ReplicaNow]], states: Iterable[str]) -> None:
        self._read, self._states = read, list(states)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics at a scrape."""
        states = GaugeMetricFamily(
            "mens_replica_state", "1 for the current state of a replica.", labels=("replica", "state")
        )
        in_flight = GaugeMetricFamily(
            "mens_replica_requests_in_flight", "Requests of this process in flight at a replica.", labels=("replica",)
        )
        for replica in self._read():
            in_flight.add_metric([replica.url], replica.in_flight)
            for state in self._states:
                states.add_metric([replica.url, state], replica.state == state)
        yield states
        yield in_flight

    def describe(self) -> Iterator[Metric]:
        """Return no metrics, for the reason given in :meth:`JobsCollector.describe`."""
        return iter(())

"""Every metric of the tiers, from their registries."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

import serving.metrics  # noqa: F401  registers
from api.metrics.installation import JobsCollector, ReplicaNow, ReplicasCollector, WebhooksCollector
from api.metrics.requests import ApiMetrics
from api.settings import ApiSettings
from shared.database.overview.job_counts import JobCount, JobCounts
from shared.database.overview.webhook_counts import WebhookCounts
from worker.metrics.counters import WorkerMetrics


class MetricName(NamedTuple):
    """A metric: its name in queries, type, labels and help text."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


@cache
def metric_names() -> dict[str, list[MetricName]]:
    """Mens's metrics by tier, sorted by name, without the process metrics that the client library adds."""
    api = ApiMetrics(ApiSettings())
    counts = JobCounts([JobCount("t", "finetune", "queued", 1)], [])
    api.registry.register(JobsCollector(lambda: counts, lambda: 0, api.tenants))
    api.registry.register(WebhooksCollector(lambda: WebhookCounts({"pending": 1}, {"enabled": 1}, 0)))
    api.registry.register(ReplicasCollector(lambda: [ReplicaNow("u", "up", 0)], ["up"]))
    registries = {"API": api.registry, "Worker": WorkerMetrics().registry, "Serving": REGISTRY}
    return {tier: sorted(_names(registry)) for tier, registry in registries.items()}


def _names(registry: CollectorRegistry) -> Iterator[MetricName]:
    for collector in registry._collector_to_names:
        for family in collector.collect():
            if family.name.startswith("mens_"):
                name = f"{family.name}_total" if family.type == "counter" else family.name
                yield MetricName(name, family.type, _labels(collector, family), family.documentation)


def _labels(collector: object, family: Any) -> tuple[str, ...]:
    owner = collector if isinstance(collector, MetricWrapperBase) else family
    return tuple(owner._labelnames)

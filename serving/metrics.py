"""Metrics of a replica in addition to vLLM's: its adapters, its self-test, and requests that the guard refused.
docs/metrics.md lists all of them.

They are in prometheus_client's default registry, which vLLM exports at ``/metrics``, so a scraper needs only one URL
per replica.
"""

from __future__ import annotations

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

FETCH_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
LOADED = "loaded"

ADAPTER_FETCHES = Counter(
    "mens_adapter_fetches",
    "Adapters that were fetched and verified (loaded), or refused with a code, when a request first named them.",
    ("result",),
    registry=REGISTRY,
)
ADAPTER_FETCH_SECONDS = Histogram(
    "mens_adapter_fetch_seconds",
    "Time to fetch and verify an adapter that was loaded.",
    buckets=FETCH_SECONDS,
    registry=REGISTRY,
)
ADAPTERS_VERIFIED = Gauge(
    "mens_adapters_verified", "Adapters that this replica uses from a verified copy.", registry=REGISTRY
)
ADAPTER_UNLOADS = Counter(
    "mens_adapter_unloads",
    "Deleted adapters that the engine has dropped and whose copies are removed.",
    registry=REGISTRY,
)
ADAPTER_EVICTIONS = Counter(
    "mens_adapter_evictions",
    "Adapters whose copies were removed to make room; the next request fetches them again.",
    registry=REGISTRY,
)
SELF_TEST_PASSING = Gauge(
    "mens_self_test_passing",
    "1 while the engine passes the replica's self-test; 0 before the engine's first answer.",
    registry=REGISTRY,
)
SELF_TESTS = Counter("mens_self_tests", "Self-tests of the engine, by result.", ("result",), registry=REGISTRY)
GUARD_REFUSALS = Counter(
    "mens_guard_refusals", "Requests that the guard refused, by code.", ("code",), registry=REGISTRY
)

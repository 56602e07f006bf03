"""The request metrics of an API process, read from its registry after real requests; callers cannot create an unlimited
number of series.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from api.errors import ERROR_CODE
from api.metrics.requests import MODEL, TENANT, ApiMetrics, FinishedRequest
from api.settings import ApiSettings
from shared.database.tenancy import KeyLimits, Role
from shared.database.usage import Amount
from tests.support.asgi_server import serve
from tests.support.builders import BASE
from tests.support.gateway import FakeReplica, register_adapters
from tests.support.waiting import eventually

Labels = dict[str, str]


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


def series(registry: CollectorRegistry) -> int:
    return sum(len(family.samples) for family in registry.collect())


def test_requests_are_counted_by_route_not_by_path(app: FastAPI, client: TestClient) -> None:
    registry = app.state.services.metrics.registry
    for job in ("ftjob-1", "ftjob-2"):
        client.get(f"/v1/jobs/{job}")
    client.get("/v1/jobs/")
    client.head("/v1/models")
    assert value(registry, "mens_api_requests_total", route="/v1/jobs/{job_id}", method="GET", status="404") == 2
    assert value(registry, "mens_api_requests_total", route="/v1/jobs", method="GET", status="200") == 1
    assert value(registry, "mens_api_requests_total", route="/v1/models", method="HEAD", status="200") == 1
    assert value(registry, "mens_api_refusals_total", code="JOB_NOT_FOUND") == 2
    assert value(registry, "mens_api_request_seconds_count", route="/v1/jobs/{job_id}") == 2


def test_unknown_paths_methods_and_keys_make_no_series_of_their_own(app: FastAPI, client: TestClient) -> None:
    registry = app.state.services.metrics.registry
    client.get("/v1/nowhere/0")
    before = series(registry)
    for number in range(20):
        client.get(f"/v1/nowhere/{number}")
        client.request(f"VERB{number}", f"/v1/nowhere/{number}")
        client.get(f"/somewhere/{number}", headers={"Authorization": f"Bearer key-{number}"})
    assert series(registry) <= before + 8  # 404 and 405, with and without a key, each once
    assert value(registry, "mens_api_refusals_total", code="ROUTE_NOT_FOUND") >= 21


def test_refusal_before_any_route_is_counted(app: FastAPI, anonymous: TestClient) -> None:
    anonymous.get("/v1/jobs")
    assert value(app.state.services.metrics.registry, "mens_api_refusals_total", code="KEY_MISSING") == 1


@pytest.fixture
def gateway(app: FastAPI) -> Iterator[httpx.Client]:
    """A client of the API on a real socket, with a replica behind it."""
    replica = FakeReplica()
    for replica_url in serve(replica):
        replica.url = replica_url
        app.state.services.settings.serving_urls[:] = [replica_url]
        _, secret = app.state.services.keys.create("test")
        register_adapters(app)
        for url in serve(app, lifespan="on"):
            with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=60) as client:
                yield client


@pytest.mark.network
def test_model_has_its_latencies_by_the_name_that_it_was_found_by(app: FastAPI, gateway: httpx.Client) -> None:
    registry = app.state.services.metrics.registry
    gateway.post("/v1/completions", json={"model": BASE, "prompt": "x"})
    with gateway.stream("POST", "/v1/completions", json={"model": "helper", "stream": True}) as response:
        list(response.iter_raw())
    eventually(lambda: value(registry, "mens_model_response_seconds_count", model="helper") == 1)
    assert value(registry, "mens_model_first_token_seconds_count", model="helper") == 1
    first = value(registry, "mens_model_first_token_seconds_sum", model="helper")
    assert 0 < first < value(registry, "mens_model_response_seconds_sum", model="helper") - 0.2
    assert value(registry, "mens_model_response_seconds_count", model=BASE) == 1
    assert value(registry, "mens_model_first_token_seconds_count", model=BASE) == 0, "it was no stream"
    route = {"route": "/v1/completions", "method": "POST", "status": "200"}
    eventually(lambda: value(registry, "mens_api_requests_total", **route) == 2)


@pytest.mark.network
def test_names_of_unknown_models_make_no_series(app: FastAPI, gateway: httpx.Client) -> None:
    registry = app.state.services.metrics.registry
    gateway.post("/v1/completions", json={"model": "no-0", "prompt": "x"})
    eventually(lambda: value(registry, "mens_api_refusals_total", code="MODEL_NOT_FOUND") == 1)  # after its answer
    before = series(registry)
    for number in range(30):
        gateway.post("/v1/completions", json={"model": f'no-{number}"}}\n# HELP evil', "prompt": "x"})
    eventually(lambda: value(registry, "mens_api_refusals_total", code="MODEL_NOT_FOUND") == 31)
    assert series(registry) == before


@pytest.mark.network
def test_limit_that_was_hit_names_the_tenant(app: FastAPI, gateway: httpx.Client) -> None:
    keys = app.state.services.keys
    _, secret = keys.create("t", tenant="team-a", role=Role.VIEWER, limits=KeyLimits(requests_per_minute=1))
    for _ in range(3):
        gateway.post("/v1/completions", json={"model": BASE}, headers={"Authorization": f"Bearer {secret}"})
    labels = {"tenant": "team-a", "code": "RATE_LIMITED"}
    registry = app.state.services.metrics.registry
    eventually(lambda: value(registry, "mens_api_quota_refusals_total", **labels) == 2)


def finished(**state: str) -> FinishedRequest:
    return FinishedRequest("/v1/x", "POST", 429 if ERROR_CODE in state else 200, dict(state), 0.1, 0.05)


def test_models_and_tenants_beyond_the_bounds_are_summed() -> None:
    settings = ApiSettings(metrics_models=["pinned"], metrics_max_models=3, metrics_max_tenants=2)
    metrics = ApiMetrics(settings)
    for number in range(200):
        metrics.finished(finished(**{MODEL: f"model-{number}\n"}))
        metrics.used(f"model-{number}\n", Amount(1, 10, 5, 2))
        metrics.finished(finished(**{ERROR_CODE: "RATE_LIMITED", TENANT: f"tenant-{number}"}))
    metrics.finished(finished(**{MODEL: "pinned"}))
    read = metrics.registry
    assert value(read, "mens_model_response_seconds_count", model="other") == 197
    assert value(read, "mens_model_response_seconds_count", model="pinned") == 1
    assert value(read, "mens_model_tokens_total", model="other", kind="prompt") == 1970
    assert value(read, "mens_api_quota_refusals_total", tenant="other", code="RATE_LIMITED") == 198
    assert series(read) < 250


def test_names_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_METRICS_TENANTS", "team-a, team-b,")
    assert ApiSettings().metrics_tenants == ["team-a", "team-b"]

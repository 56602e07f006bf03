"""Three replicas on real sockets, and an API that knows them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI

from api.inference.replicas.pool import ReplicaPool, in_order
from api.settings import ApiSettings
from tests.support.gateway import ADAPTER
from tests.support.running_api import RunningApi
from tests.support.socket_replica import RawReplica


@pytest.fixture
def tier() -> Iterator[dict[str, RawReplica]]:
    """Three replicas by URL, in the order of the adapter."""
    replicas = {replica.url: replica for replica in (RawReplica(name) for name in "xyz")}
    order = [replica.url for replica in in_order(ReplicaPool(replicas).all, ADAPTER)]
    yield {url: replicas[url] for url in order}
    for replica in replicas.values():
        replica.stop()


@pytest.fixture
def first_byte_seconds() -> float:
    """How long a stream may take to begin. Longer than a busy machine takes; tests of late streams give another."""
    return 60.0


@pytest.fixture
def settings(settings: ApiSettings, first_byte_seconds: float) -> ApiSettings:
    changes = {"health_seconds": 0.1, "first_byte_seconds": first_byte_seconds, "serving_urls": []}
    return settings.model_copy(update=changes)


@pytest.fixture
def api(app: FastAPI, tier: dict[str, RawReplica]) -> Iterator[httpx.Client]:
    """A client of an API with three replicas, all up."""
    app.state.services.settings.serving_urls[:] = list(tier)
    with RunningApi(app) as client:
        yield client

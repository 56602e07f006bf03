"""Dead, slow, new and returning replicas on real sockets, as the health monitor sees them."""

from __future__ import annotations

import socket
import time
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.inference.replicas.pool import LATE_STREAMS
from api.main import create_app
from api.settings import ApiSettings
from tests.support.builders import BASE
from tests.support.gateway import ADAPTER
from tests.support.running_api import RunningApi, idle, served_by, states
from tests.support.socket_replica import RawReplica
from tests.support.waiting import eventually

pytestmark = pytest.mark.network


def test_dead_replica_is_out_at_once_and_back_when_warm(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    first, second, _ = tier.values()
    assert served_by(api) == first.name
    first.stop()
    assert served_by(api) == second.name
    assert states(api)[first.url] == "down"
    first.asked.clear()
    first.start()
    eventually(lambda: states(api)[first.url] == "up")
    assert {ADAPTER, BASE} <= set(first.models), "the most requested were loaded before it got a request"
    assert all(body["max_tokens"] == 1 for body in first.asked)
    assert served_by(api) == first.name


def test_replica_that_cannot_be_warmed_is_used_all_the_same(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    first, *_ = tier.values()
    first.stop()
    served_by(api)
    first.mode = "500"
    first.start()
    eventually(lambda: states(api)[first.url] == "up")


@pytest.mark.parametrize("health", [500, 503])
def test_failed_health_checks_take_a_replica_out(api: httpx.Client, tier: dict[str, RawReplica], health: int) -> None:
    first, second, _ = tier.values()
    first.health, before = health, int(time.time())
    eventually(lambda: states(api)[first.url] == "down")
    assert served_by(api) == second.name
    first.health = 200
    eventually(lambda: states(api)[first.url] == "up")
    (seen,) = [replica for replica in api.get("/v1/replicas").json()["data"] if replica["url"] == first.url]
    assert seen["last_error"] == f"health check: status {health}", "the error stays, with its time"
    assert before <= seen["last_error_at"] <= time.time()


@pytest.mark.parametrize("first_byte_seconds", [1.0])
def test_replica_with_late_streams_becomes_slow(
    api: httpx.Client, tier: dict[str, RawReplica], first_byte_seconds: float
) -> None:
    first, second, _ = tier.values()
    first.mode, second.mode = "hang", "stream"
    for _ in range(LATE_STREAMS):
        assert served_by(api, stream=True) == second.name
    assert states(api)[first.url] == "slow"
    assert served_by(api, stream=True) == second.name
    assert first.models.count(ADAPTER) == LATE_STREAMS
    assert idle(api)


def test_only_replica_gets_requests_as_soon_as_it_is_back(app: FastAPI) -> None:
    """A request must not be refused because the next health check is still to come."""
    replica = RawReplica("only")
    app.state.services.settings.serving_urls[:] = [replica.url]
    with RunningApi(app) as client:
        app.state.services.gateway.failover.health._interval = 30.0
        eventually(lambda: replica.stop() or client.post("/v1/completions", json={"model": ADAPTER}).is_error)
        eventually(lambda: states(client)[replica.url] == "down")
        replica.start()
        assert served_by(client) == "only"
        eventually(lambda: states(client)[replica.url] == "up")
    replica.stop()


def test_replicas_follow_the_addresses_of_a_dns_name(
    settings: ApiSettings, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The DNS table is the test's; lookups, health checks and requests are real, on two loopback addresses."""
    one = RawReplica("one", "127.0.0.2")
    two = RawReplica("two", "127.0.0.3", one.port)
    table, resolve = ["127.0.0.2"], socket.getaddrinfo

    def lookup(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host != "replicas.test":
            return resolve(host, port, *rest, **more)
        if not table:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in table]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    named = create_app(settings.model_copy(update={"serving_dns": f"replicas.test:{one.port}"}))
    with RunningApi(named) as client:
        eventually(lambda: states(client) == {one.url: "up"})
        assert served_by(client) == "one"
        table.append("127.0.0.3")
        eventually(lambda: states(client) == {one.url: "up", two.url: "up"})
        assert ADAPTER in two.models, "warmed"
        assert named.state.services.replica_limits.urls == [one.url, two.url]
        table.clear()
        served_by(client)
        assert set(states(client)) == {one.url, two.url}, "a name without addresses takes no replica out"
        table.append("127.0.0.3")
        eventually(lambda: states(client) == {two.url: "up"})
        assert served_by(client) == "two"
    one.stop()
    two.stop()

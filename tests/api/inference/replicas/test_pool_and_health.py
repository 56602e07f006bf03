"""The replica pool, its health monitor and failover: the rules, and dead, slow, new and returning replicas on real sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from api.inference.replicas.pool import (
    FIRST_BACKOFF_SECONDS,
    FORGET_SECONDS,
    LATE_STREAMS,
    LONGEST_BACKOFF_SECONDS,
    ModelPopularity,
    Replica,
    ReplicaPool,
    ReplicaState,
    in_flight_limit,
    in_order,
)
from api.main import create_app
from api.settings import ApiSettings
from shared.errors import Unavailable
from shared.replicas import discover
from tests.support.asgi_server import serve
from tests.support.builders import BASE
from tests.support.gateway import ADAPTER, register_adapters
from tests.support.socket_replica import RawReplica
from tests.support.waiting import eventually

URLS = [f"http://10.0.0.{number}:8001" for number in range(1, 9)]
MODELS = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=50, unique=True)
SOME_URLS = st.lists(st.sampled_from(URLS), min_size=2, unique=True)

pytestmark = pytest.mark.network


def up(urls: list[str]) -> ReplicaPool:
    replicas = ReplicaPool(urls)
    for replica in replicas.all:
        replica.state = ReplicaState.UP
    return replicas


def taken(replicas: ReplicaPool, model: str, tried: Any = ()) -> Replica:
    replica = replicas.take(model, tried)
    assert replica
    return replica


# -- the rule --------------------------------------------------------------------------------------------------------


def test_errors_before_the_first_healthy_check_are_dropped() -> None:
    replica = Replica("http://10.0.0.1:8001")
    replica.failed_check("health check: connection refused")
    assert replica.last_error, "for as long as it was never healthy"
    replica.passed_check(0.0)
    assert (replica.last_error, replica.last_error_at) == (None, None)
    replica.failed_check("health check: status 503")
    replica.passed_check(0.0)
    assert replica.last_error == "health check: status 503"


@given(SOME_URLS, MODELS, st.randoms())
def test_removed_replica_moves_only_its_own_models(urls: list[str], models: list[str], random: Any) -> None:
    gone, order = random.choice(urls), random.sample(urls, len(urls))
    for model in models:
        before = in_order(up(urls).all, model)
        after = in_order([replica for replica in up(order).all if replica.url != gone], model)
        assert [r.url for r in after] == [r.url for r in before if r.url != gone], "in whatever order they are listed"


@pytest.mark.parametrize("count", range(2, 9))
def test_models_are_spread_over_all_replicas(count: int) -> None:
    firsts = [in_order(up(URLS[:count]).all, f"helper@{number:064x}")[0].url for number in range(1000)]
    share = 1000 / count
    assert all(0.75 * share < firsts.count(url) < 1.25 * share for url in URLS[:count])


@given(SOME_URLS, st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=200))
def test_no_replica_exceeds_the_in_flight_limit(urls: list[str], requests: list[tuple[str, int]]) -> None:
    replicas, in_flight = up(urls), []
    for model, ends in requests:
        limit, before = in_flight_limit(replicas.all), {replica.url: replica.in_flight for replica in replicas.all}
        replica = taken(replicas, model)
        in_flight.append(replica)
        assert replica.in_flight <= limit
        earlier = in_order(replicas.all, model)[: in_order(replicas.all, model).index(replica)]
        assert all(before[other.url] >= limit for other in earlier), "only replicas at the limit are passed over"
        for _ in range(min(ends, len(in_flight))):
            replicas.release(in_flight.pop(0))
    assert sum(replica.in_flight for replica in replicas.all) == len(in_flight)


def test_candidates_are_the_best_available_states() -> None:
    replicas = ReplicaPool(URLS[:5])
    for replica, state in zip(replicas.all, ReplicaState, strict=True):
        replica.state = state
    (best,) = replicas.candidates()
    assert best.state is ReplicaState.UP
    assert {replica.state for replica in replicas.candidates([best])} == {
        ReplicaState.NEW,
        ReplicaState.WARMING,
        ReplicaState.SLOW,
    }
    (worst,) = replicas.candidates([replica for replica in replicas.all if replica.state is not ReplicaState.DOWN])
    assert worst.state is ReplicaState.DOWN
    assert replicas.take("m", replicas.all) is None
    assert ReplicaPool().take("m") is None


def test_replica_that_stays_keeps_its_state() -> None:
    replicas = up(URLS[:3])
    kept, urls = replicas.all[1], replicas.urls
    added, removed = replicas.update([URLS[5], URLS[1], URLS[1]])
    assert ([r.url for r in added], {r.url for r in removed}) == ([URLS[5]], {URLS[0], URLS[2]})
    assert (replicas.all[1], replicas.all[1].state, replicas.all[0].state) == (kept, ReplicaState.UP, ReplicaState.NEW)
    assert replicas.urls is urls
    assert urls == [URLS[5], URLS[1]]


def test_slow_replica_is_out_for_longer_each_time() -> None:
    replica, now, waits = Replica("u", ReplicaState.UP), 1000.0, []
    for _ in range(8):
        while replica.state is ReplicaState.UP:
            replica.stream_began(30.0, 30.0, now)
        waits.append(replica.back_at - now)
        replica.passed_check(replica.back_at - 0.1)
        assert replica.state is ReplicaState.SLOW
        now = replica.back_at
        replica.passed_check(now)
        assert replica.state is ReplicaState.UP
    assert waits == [min(FIRST_BACKOFF_SECONDS * 2**n, LONGEST_BACKOFF_SECONDS) for n in range(8)]
    replica.stream_began(30.0, 30.0, now + FORGET_SECONDS + 1)
    assert replica.back_at == now + FORGET_SECONDS + 1 + FIRST_BACKOFF_SECONDS, (
        "one late stream is enough, and the back-off starts again"
    )


def test_stream_in_time_resets_the_count_of_late_ones() -> None:
    replica = Replica("u", ReplicaState.UP)
    for seconds in ([30.0] * (LATE_STREAMS - 1) + [0.1]) * 3:
        replica.stream_began(seconds, 30.0, 0.0)
    assert replica.state is ReplicaState.UP


def test_popularity_counts_the_last_minutes_only() -> None:
    popularity = ModelPopularity()
    for model, times, now in [("old", 9, 0), ("a", 2, 250), ("b", 3, 301), ("a", 2, 330)]:
        for _ in range(times):
            popularity.count(model, now)
    assert popularity.top(2, 310) == ["a", "b"]
    assert popularity.top(8, 299) == ["old", "a", "b"]
    assert popularity.top(8, 10_000) == []


# -- where they are --------------------------------------------------------------------------------------------------


def test_static_urls_come_first_and_once() -> None:
    found = discover(["http://a:1/", "http://127.0.0.1:9", "http://a:1"], "localhost:9")
    assert found == ["http://a:1", "http://127.0.0.1:9"]
    assert discover([], "[::1]:9") == ["http://[::1]:9"]


def test_name_without_addresses_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"nobody\.invalid"):
        discover(["http://a:1"], "nobody.invalid:8001")


# -- real sockets ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tier() -> Iterator[dict[str, RawReplica]]:
    """Three replicas by URL, in the order of the adapter."""
    replicas = {replica.url: replica for replica in (RawReplica(name) for name in "xyz")}
    order = [replica.url for replica in in_order(ReplicaPool(replicas).all, ADAPTER)]
    yield {url: replicas[url] for url in order}
    for replica in replicas.values():
        replica.stop()


@pytest.fixture
def settings(settings: ApiSettings) -> ApiSettings:
    return settings.model_copy(update={"health_seconds": 0.1, "first_byte_seconds": 0.3, "serving_urls": []})


@pytest.fixture
def api(app: FastAPI, tier: dict[str, RawReplica]) -> Iterator[httpx.Client]:
    """A client of an API with three replicas, all up."""
    app.state.services.settings.serving_urls[:] = list(tier)
    with RunningApi(app) as client:
        yield client


class RunningApi:
    """A context with a client of an application on a real socket, whose health monitor runs."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def __enter__(self) -> httpx.Client:
        _, secret = self._app.state.services.keys.create("test")
        register_adapters(self._app)
        self._server = serve(self._app, lifespan="on")
        url = next(self._server)
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=10)
        self._client.post("/v1/completions", json={"model": BASE})  # the health monitor starts
        if self._app.state.services.settings.serving_urls:
            eventually(lambda: set(states(self._client).values()) == {"up"})
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
        next(self._server, None)


def states(client: httpx.Client) -> dict[str, str]:
    return {replica["url"]: replica["state"] for replica in client.get("/v1/replicas").json()["data"]}


def idle(client: httpx.Client) -> bool:
    return all(replica["in_flight"] == 0 for replica in client.get("/v1/replicas").json()["data"])


def served_by(client: httpx.Client, model: str = ADAPTER, **body: Any) -> str:
    """Name of the replica that responded."""
    response = client.post("/v1/completions", json={"model": model, **body})
    assert response.status_code == 200, response.text
    return str(response.json()["by"]) if not body.get("stream") else response.text.split()[1]


def test_adapters_requests_stay_at_one_replica(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    first, *others = tier.values()
    assert {served_by(api) for _ in range(10)} == {first.name}
    assert not [model for other in others for model in other.models if model == ADAPTER]
    assert idle(api)


def test_concurrent_requests_are_shared_by_all_replicas(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    for replica in tier.values():
        replica.mode = "stream"
    with ThreadPoolExecutor(24) as threads:
        names = list(threads.map(lambda _: served_by(api, stream=True), range(24)))
    assert min(names.count(replica.name) for replica in tier.values()) >= 2
    assert idle(api)


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


@pytest.mark.parametrize(
    ("mode", "streams"),
    [("503", False), ("drop", False), ("dead", False), ("drop", True), ("headers", True), ("dead", True)],
)
def test_request_without_a_first_byte_is_sent_to_the_next_replica(
    api: httpx.Client, tier: dict[str, RawReplica], mode: str, streams: bool
) -> None:
    first, second, _ = tier.values()
    first.mode, second.mode = mode, "stream" if streams else "answer"
    assert served_by(api, stream=streams) == second.name
    # What a reused connection lost without an answer is sent once more, on a new one.
    assert first.models.count(ADAPTER) in ((1, 2) if mode == "drop" else (1,))
    assert second.models.count(ADAPTER) == 1
    assert idle(api)


def test_response_that_has_begun_is_never_requested_again(
    api: httpx.Client, tier: dict[str, RawReplica], caplog: pytest.LogCaptureFixture
) -> None:
    first, *others = tier.values()
    first.mode = "one"
    with caplog.at_level("WARNING"):
        response = api.post("/v1/completions", json={"model": ADAPTER, "stream": True})
    error = json.loads(response.text.split("\n\n")[-2].removeprefix("data: "))["error"]
    assert (error["code"], first.url in response.text) == ("SERVING_FAILED", False)
    assert not [model for other in others for model in other.models if model == ADAPTER]
    (record,) = [record for record in caplog.records if "disconnected in the middle of a response" in record.message]
    assert (record.levelname, record.exc_info, first.url in record.message) == ("WARNING", None, True)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    eventually(lambda: idle(api))


def test_truncated_response_is_truncated_for_the_caller(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    next(iter(tier.values())).mode = "short"
    with pytest.raises(httpx.RemoteProtocolError):
        served_by(api)
    eventually(lambda: idle(api))


def test_error_response_is_passed_on_without_failover(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    first, *others = tier.values()
    first.mode = "500"
    assert api.post("/v1/completions", json={"model": ADAPTER}).status_code == 500
    assert not [model for other in others for model in other.models if model == ADAPTER]


def test_replica_with_late_streams_becomes_slow(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    first, second, _ = tier.values()
    first.mode, second.mode = "hang", "stream"
    for _ in range(LATE_STREAMS):
        assert served_by(api, stream=True) == second.name
    assert states(api)[first.url] == "slow"
    assert served_by(api, stream=True) == second.name
    assert first.models.count(ADAPTER) == LATE_STREAMS
    assert idle(api)


def test_response_that_is_not_streamed_has_no_first_byte_limit(
    app: FastAPI, api: httpx.Client, tier: dict[str, RawReplica]
) -> None:
    first, *_ = tier.values()
    first.mode = "hang"
    with pytest.raises(httpx.ReadTimeout):
        api.post("/v1/completions", json={"model": ADAPTER}, timeout=1.0)  # more than three times first_byte_seconds
    assert states(api)[first.url] == "up"
    eventually(lambda: idle(api))


def test_request_that_breaks_two_replicas_is_sent_to_no_third(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    for replica in tier.values():
        replica.mode = "drop"
    response = api.post("/v1/completions", json={"model": ADAPTER})
    assert (response.status_code, response.json()["error"]["mens"]["code"]) == (503, "SERVING_UNAVAILABLE")
    assert [ADAPTER in replica.models for replica in tier.values()] == [True, True, False]


def test_server_error_that_closes_the_connection_does_not_reach_the_next_caller(
    api: httpx.Client, tier: dict[str, RawReplica]
) -> None:
    first = next(iter(tier.values()))
    for first.mode, status in (("500 and close", 500), ("answer", 200)) * 5:
        assert api.post("/v1/completions", json={"model": ADAPTER}).status_code == status


def test_all_replicas_down_is_unavailable(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    for replica in tier.values():
        replica.stop()
    for _ in range(2):
        response = api.post("/v1/completions", json={"model": ADAPTER})
        assert (response.status_code, response.json()["error"]["mens"]["code"]) == (503, "SERVING_UNAVAILABLE")
        assert response.headers["retry-after"]
    assert set(states(api).values()) == {"down"}
    assert idle(api)


def test_caller_may_wait_for_the_only_replica(app: FastAPI) -> None:
    replica = RawReplica("only")
    app.state.services.settings.serving_urls[:] = [replica.url]
    with RunningApi(app) as client, ThreadPoolExecutor(1) as pool:

        def ask(wait: str | None) -> httpx.Response:
            headers = {} if wait is None else {"Mens-Max-Wait": wait}
            return client.post("/v1/completions", json={"model": ADAPTER}, headers=headers, timeout=60)

        assert ask(None).is_success
        replica.stop()
        for wait in (None, "0", "0.2"):
            response = ask(wait)
            assert (response.status_code, response.json()["error"]["mens"]["code"]) == (503, "SERVING_UNAVAILABLE")
        eventually(lambda: states(client)[replica.url] == "down")
        waits = pool.submit(ask, "50")
        replica.start()
        assert waits.result(55).json()["by"] == "only"
        for wrong in ("soon", "-1", "nan", ""):
            refused = ask(wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Mens-Max-Wait")
    replica.stop()


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

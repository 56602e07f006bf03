"""Routing by rule, and by real sockets: what is dead, slow, new or back, and where requests go meanwhile."""

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

from api.main import create_app
from api.replicas import (
    FIRST_BACKOFF_SECONDS,
    FORGET_SECONDS,
    LATE_STREAMS,
    LONGEST_BACKOFF_SECONDS,
    Busiest,
    Replica,
    Replicas,
    State,
    bound,
    in_order,
)
from api.settings import ApiSettings
from shared.errors import Unavailable
from shared.replicas import discover
from tests.api.conftest import BASE
from tests.api.raw_replica import RawReplica, eventually
from tests.api.test_gateway import ADAPTER, register_adapters, serve

URLS = [f"http://10.0.0.{number}:8001" for number in range(1, 9)]
MODELS = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=50, unique=True)
SOME_URLS = st.lists(st.sampled_from(URLS), min_size=2, unique=True)

pytestmark = pytest.mark.network


def up(urls: list[str]) -> Replicas:
    replicas = Replicas(urls)
    for replica in replicas.all:
        replica.state = State.UP
    return replicas


def taken(replicas: Replicas, model: str, tried: Any = ()) -> Replica:
    replica = replicas.take(model, tried)
    assert replica
    return replica


# -- the rule --------------------------------------------------------------------------------------------------------


def test_that_a_replica_was_not_there_yet_is_no_error_of_it() -> None:
    replica = Replica("http://10.0.0.1:8001")
    replica.failed_check("health check: connection refused")
    assert replica.last_error, "but for as long as it is not there"
    replica.is_healthy(0.0)
    assert (replica.last_error, replica.last_error_at) == (None, None)
    replica.failed_check("health check: status 503")
    replica.is_healthy(0.0)
    assert replica.last_error == "health check: status 503"


@given(SOME_URLS, MODELS, st.randoms())
def test_a_replica_that_leaves_moves_its_own_models_only(urls: list[str], models: list[str], random: Any) -> None:
    gone, order = random.choice(urls), random.sample(urls, len(urls))
    for model in models:
        before = in_order(up(urls).all, model)
        after = in_order([replica for replica in up(order).all if replica.url != gone], model)
        assert [r.url for r in after] == [r.url for r in before if r.url != gone], "whatever order they are listed in"


@pytest.mark.parametrize("count", range(2, 9))
def test_models_are_spread_over_all_replicas(count: int) -> None:
    firsts = [in_order(up(URLS[:count]).all, f"helper@{number:064x}")[0].url for number in range(1000)]
    share = 1000 / count
    assert all(0.75 * share < firsts.count(url) < 1.25 * share for url in URLS[:count])


@given(SOME_URLS, st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=200))
def test_no_replica_ever_takes_more_than_the_bound(urls: list[str], requests: list[tuple[str, int]]) -> None:
    replicas, under_way = up(urls), []
    for model, ends in requests:
        limit, before = bound(replicas.all), {replica.url: replica.in_flight for replica in replicas.all}
        replica = taken(replicas, model)
        under_way.append(replica)
        assert replica.in_flight <= limit
        earlier = in_order(replicas.all, model)[: in_order(replicas.all, model).index(replica)]
        assert all(before[other.url] >= limit for other in earlier), "only full ones are passed over"
        for _ in range(min(ends, len(under_way))):
            replicas.release(under_way.pop(0))
    assert sum(replica.in_flight for replica in replicas.all) == len(under_way)


def test_who_may_be_asked() -> None:
    replicas = Replicas(URLS[:5])
    for replica, state in zip(replicas.all, State, strict=True):
        replica.state = state
    (best,) = replicas.candidates()
    assert best.state is State.UP
    assert {replica.state for replica in replicas.candidates([best])} == {State.NEW, State.WARMING, State.SLOW}
    (worst,) = replicas.candidates([replica for replica in replicas.all if replica.state is not State.DOWN])
    assert worst.state is State.DOWN
    assert replicas.take("m", replicas.all) is None
    assert Replicas().take("m") is None


def test_one_that_stays_keeps_its_state() -> None:
    replicas = up(URLS[:3])
    kept, urls = replicas.all[1], replicas.urls
    come, gone = replicas.know([URLS[5], URLS[1], URLS[1]])
    assert ([r.url for r in come], {r.url for r in gone}) == ([URLS[5]], {URLS[0], URLS[2]})
    assert (replicas.all[1], replicas.all[1].state, replicas.all[0].state) == (kept, State.UP, State.NEW)
    assert replicas.urls is urls
    assert urls == [URLS[5], URLS[1]]


def test_slow_for_longer_each_time() -> None:
    replica, now, waits = Replica("u", State.UP), 1000.0, []
    for _ in range(8):
        while replica.state is State.UP:
            replica.began(30.0, 30.0, now)
        waits.append(replica.back_at - now)
        replica.is_healthy(replica.back_at - 0.1)
        assert replica.state is State.SLOW
        now = replica.back_at
        replica.is_healthy(now)
        assert replica.state is State.UP
    assert waits == [min(FIRST_BACKOFF_SECONDS * 2**n, LONGEST_BACKOFF_SECONDS) for n in range(8)]
    replica.began(30.0, 30.0, now + FORGET_SECONDS + 1)
    assert replica.back_at == now + FORGET_SECONDS + 1 + FIRST_BACKOFF_SECONDS, "one is enough, and all is forgiven"


def test_one_stream_in_time_clears_a_replica() -> None:
    replica = Replica("u", State.UP)
    for seconds in ([30.0] * (LATE_STREAMS - 1) + [0.1]) * 3:
        replica.began(seconds, 30.0, 0.0)
    assert replica.state is State.UP


def test_busy_means_lately() -> None:
    busiest = Busiest()
    for model, times, now in [("old", 9, 0), ("a", 2, 250), ("b", 3, 301), ("a", 2, 330)]:
        for _ in range(times):
            busiest.count(model, now)
    assert busiest.top(2, 310) == ["a", "b"]
    assert busiest.top(8, 299) == ["old", "a", "b"]
    assert busiest.top(8, 10_000) == []


# -- where they are --------------------------------------------------------------------------------------------------


def test_static_urls_come_first_and_once() -> None:
    found = discover(["http://a:1/", "http://127.0.0.1:9", "http://a:1"], "localhost:9")
    assert found == ["http://a:1", "http://127.0.0.1:9"]
    assert discover([], "[::1]:9") == ["http://[::1]:9"]


def test_a_name_without_addresses() -> None:
    with pytest.raises(Unavailable, match=r"nobody\.invalid"):
        discover(["http://a:1"], "nobody.invalid:8001")


# -- real sockets ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tier() -> Iterator[dict[str, RawReplica]]:
    """Three replicas by URL, in the order in which the adapter asks them."""
    replicas = {replica.url: replica for replica in (RawReplica(name) for name in "xyz")}
    order = [replica.url for replica in in_order(Replicas(replicas).all, ADAPTER)]
    yield {url: replicas[url] for url in order}
    for replica in replicas.values():
        replica.stop()


@pytest.fixture
def settings(settings: ApiSettings) -> ApiSettings:
    return settings.model_copy(update={"health_seconds": 0.1, "first_byte_seconds": 0.3, "serving_urls": []})


@pytest.fixture
def door(app: FastAPI, tier: dict[str, RawReplica]) -> Iterator[httpx.Client]:
    """A front door of three replicas, all up."""
    app.state.services.settings.serving_urls[:] = list(tier)
    with entered(app) as client:
        yield client


class entered:
    """A client of an application on a real socket, whose replicas are watched."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def __enter__(self) -> httpx.Client:
        _, secret = self._app.state.services.keys.create("test")
        register_adapters(self._app)
        self._server = serve(self._app, lifespan="on")
        url = next(self._server)
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=10)
        self._client.post("/v1/completions", json={"model": BASE})  # the watch begins
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


def ask(client: httpx.Client, model: str = ADAPTER, **body: Any) -> str:
    """Name of the replica that answered."""
    answer = client.post("/v1/completions", json={"model": model, **body})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["by"]) if not body.get("stream") else answer.text.split()[1]


def test_an_adapter_stays_where_it_is_warm(door: httpx.Client, tier: dict[str, RawReplica]) -> None:
    first, *others = tier.values()
    assert {ask(door) for _ in range(10)} == {first.name}
    assert not [model for other in others for model in other.models if model == ADAPTER]
    assert idle(door)


def test_many_at_once_are_shared(door: httpx.Client, tier: dict[str, RawReplica]) -> None:
    for replica in tier.values():
        replica.mode = "stream"
    with ThreadPoolExecutor(24) as threads:
        answers = list(threads.map(lambda _: ask(door, stream=True), range(24)))
    assert min(answers.count(replica.name) for replica in tier.values()) >= 2
    assert idle(door)


def test_a_dead_replica_is_out_at_once_and_back_warm(door: httpx.Client, tier: dict[str, RawReplica]) -> None:
    first, second, _ = tier.values()
    assert ask(door) == first.name
    first.stop()
    assert ask(door) == second.name
    assert states(door)[first.url] == "down"
    first.asked.clear()
    first.start()
    eventually(lambda: states(door)[first.url] == "up")
    assert {ADAPTER, BASE} <= set(first.models), "the busiest were loaded before anybody was sent there"
    assert all(body["max_tokens"] == 1 for body in first.asked)
    assert ask(door) == first.name


def test_a_new_one_that_cannot_be_warmed_takes_part_all_the_same(
    door: httpx.Client, tier: dict[str, RawReplica]
) -> None:
    first, *_ = tier.values()
    first.stop()
    ask(door)
    first.mode = "500"
    first.start()
    eventually(lambda: states(door)[first.url] == "up")


@pytest.mark.parametrize("health", [500, 503])
def test_failed_health_checks_take_a_replica_out(door: httpx.Client, tier: dict[str, RawReplica], health: int) -> None:
    first, second, _ = tier.values()
    first.health, before = health, int(time.time())
    eventually(lambda: states(door)[first.url] == "down")
    assert ask(door) == second.name
    first.health = 200
    eventually(lambda: states(door)[first.url] == "up")
    (seen,) = [replica for replica in door.get("/v1/replicas").json()["data"] if replica["url"] == first.url]
    assert seen["last_error"] == f"health check: status {health}", "it stays, with its time"
    assert before <= seen["last_error_at"] <= time.time()


@pytest.mark.parametrize(
    ("mode", "streams"),
    [("503", False), ("drop", False), ("dead", False), ("drop", True), ("headers", True), ("dead", True)],
)
def test_what_has_not_begun_is_asked_elsewhere(
    door: httpx.Client, tier: dict[str, RawReplica], mode: str, streams: bool
) -> None:
    first, second, _ = tier.values()
    first.mode, second.mode = mode, "stream" if streams else "answer"
    assert ask(door, stream=streams) == second.name
    assert (first.models.count(ADAPTER), second.models.count(ADAPTER)) == (1, 1)
    assert idle(door)


def test_what_has_begun_is_never_asked_again(
    door: httpx.Client, tier: dict[str, RawReplica], caplog: pytest.LogCaptureFixture
) -> None:
    first, *others = tier.values()
    first.mode = "one"
    with caplog.at_level("WARNING"):
        answer = door.post("/v1/completions", json={"model": ADAPTER, "stream": True})
    error = json.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))["error"]
    assert (error["code"], first.url in answer.text) == ("SERVING_FAILED", False)
    assert not [model for other in others for model in other.models if model == ADAPTER]
    (told,) = [record for record in caplog.records if "broke off amid an answer" in record.message]
    assert (told.levelname, told.exc_info, first.url in told.message) == ("WARNING", None, True)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    eventually(lambda: idle(door))


def test_an_answer_that_is_cut_short_is_cut_for_the_caller(door: httpx.Client, tier: dict[str, RawReplica]) -> None:
    next(iter(tier.values())).mode = "short"
    with pytest.raises(httpx.RemoteProtocolError):
        ask(door)
    eventually(lambda: idle(door))


def test_an_error_of_the_model_is_the_callers(door: httpx.Client, tier: dict[str, RawReplica]) -> None:
    first, *others = tier.values()
    first.mode = "500"
    assert door.post("/v1/completions", json={"model": ADAPTER}).status_code == 500
    assert not [model for other in others for model in other.models if model == ADAPTER]


def test_a_slow_replica_is_cut_and_then_left_out(door: httpx.Client, tier: dict[str, RawReplica]) -> None:
    first, second, _ = tier.values()
    first.mode, second.mode = "hang", "stream"
    for _ in range(LATE_STREAMS):
        assert ask(door, stream=True) == second.name
    assert states(door)[first.url] == "slow"
    assert ask(door, stream=True) == second.name
    assert first.models.count(ADAPTER) == LATE_STREAMS
    assert idle(door)


def test_a_long_answer_that_is_not_streamed_is_not_slow(
    app: FastAPI, door: httpx.Client, tier: dict[str, RawReplica]
) -> None:
    first, *_ = tier.values()
    first.mode = "hang"
    with pytest.raises(httpx.ReadTimeout):
        door.post("/v1/completions", json={"model": ADAPTER}, timeout=1.0)  # more than three times first_byte_seconds
    assert states(door)[first.url] == "up"
    eventually(lambda: idle(door))


def test_what_breaks_two_replicas_goes_to_no_third(door: httpx.Client, tier: dict[str, RawReplica]) -> None:
    for replica in tier.values():
        replica.mode = "drop"
    answer = door.post("/v1/completions", json={"model": ADAPTER})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "SERVING_UNAVAILABLE")
    assert [replica.models.count(ADAPTER) for replica in tier.values()] == [1, 1, 0]


def test_all_down(door: httpx.Client, tier: dict[str, RawReplica]) -> None:
    for replica in tier.values():
        replica.stop()
    for _ in range(2):
        answer = door.post("/v1/completions", json={"model": ADAPTER})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "SERVING_UNAVAILABLE")
        assert answer.headers["retry-after"]
    assert set(states(door).values()) == {"down"}
    assert idle(door)


def test_the_only_one_is_asked_as_soon_as_it_is_back(app: FastAPI) -> None:
    """Whoever sees it answer must not be refused because the next health check is still to come."""
    replica = RawReplica("only")
    app.state.services.settings.serving_urls[:] = [replica.url]
    with entered(app) as client:
        app.state.services.watch._interval = 30.0
        eventually(lambda: replica.stop() or client.post("/v1/completions", json={"model": ADAPTER}).is_error)
        eventually(lambda: states(client)[replica.url] == "down")
        replica.start()
        assert ask(client) == "only"
        eventually(lambda: states(client)[replica.url] == "up")
    replica.stop()


def test_replicas_behind_a_name_come_and_go(
    settings: ApiSettings, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name's table is the test's; looking up, health and requests are real, on two loopback addresses."""
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
    with entered(named) as client:
        eventually(lambda: states(client) == {one.url: "up"})
        assert ask(client) == "one"
        table.append("127.0.0.3")
        eventually(lambda: states(client) == {one.url: "up", two.url: "up"})
        assert ADAPTER in two.models, "warmed"
        assert named.state.services.serving_tier.urls == [one.url, two.url]
        table.clear()
        ask(client)
        assert set(states(client)) == {one.url, two.url}, "a resolver that is away takes nobody out"
        table.append("127.0.0.3")
        eventually(lambda: states(client) == {two.url: "up"})
        assert ask(client) == "two"
    one.stop()
    two.stop()

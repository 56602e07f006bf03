"""Callers that prefer to wait for a replica instead of an error (`Mens-Max-Wait`), with one replica and with two."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.support.gateway import ADAPTER
from tests.support.running_api import RunningApi, idle, states
from tests.support.socket_replica import RawReplica
from tests.support.waiting import eventually

pytestmark = pytest.mark.network


@contextmanager
def api_with(app: FastAPI, *replicas: RawReplica) -> Iterator[httpx.Client]:
    app.state.services.settings.serving_urls[:] = [replica.url for replica in replicas]
    try:
        with RunningApi(app) as client:
            yield client
    finally:
        for replica in replicas:
            replica.stop()


def ask(client: httpx.Client, wait: str | None, *, stream: bool = False) -> httpx.Response:
    headers = {} if wait is None else {"Mens-Max-Wait": wait}
    body = {"model": ADAPTER, "stream": stream}
    return client.post("/v1/completions", json=body, headers=headers, timeout=60)


def ask_meanwhile(client: httpx.Client, wait: str, *, stream: bool) -> Future[httpx.Response]:
    answer: Future[httpx.Response] = Future()
    threading.Thread(target=lambda: answer.set_result(ask(client, wait, stream=stream)), daemon=True).start()
    return answer


def stop_all(client: httpx.Client, *replicas: RawReplica) -> None:
    for replica in replicas:
        replica.stop()
    eventually(lambda: set(states(client).values()) == {"down"})


def callers_requests(replica: RawReplica) -> list[dict[str, Any]]:
    """Return the requests that the replica got, without the health monitor's."""
    return [body for body in replica.asked if body["model"] == ADAPTER and "max_tokens" not in body]


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_wait_the_error_comes_at_once(app: FastAPI, stream: bool) -> None:
    replica = RawReplica("only")
    with api_with(app, replica) as client:
        stop_all(client, replica)
        for wait in (None, "0", "0.2"):
            response = ask(client, wait, stream=stream)
            assert (response.status_code, response.json()["error"]["mens"]["code"]) == (503, "SERVING_UNAVAILABLE")
            assert response.headers["retry-after"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_whoever_waits_is_answered_by_the_first_replica_that_is_back(app: FastAPI, count: int, stream: bool) -> None:
    replicas = [RawReplica(name) for name in "xy"[:count]]
    with api_with(app, *replicas) as client:
        for replica in replicas:
            replica.mode = "stream" if stream else "answer"
        stop_all(client, *replicas)
        waiting = ask_meanwhile(client, "50", stream=stream)
        replicas[-1].start()
        answer = waiting.result(55)
        assert (answer.status_code, replicas[-1].name in answer.text) == (200, True)
        eventually(lambda: idle(client))


@pytest.mark.parametrize("stream", [False, True])
def test_request_that_its_only_replica_took_and_lost_waits_for_the_restart(app: FastAPI, stream: bool) -> None:
    """No part of the answer had arrived, so the request may be sent again."""
    replica = RawReplica("only")
    with api_with(app, replica) as client:
        replica.mode = "hang"
        waiting = ask_meanwhile(client, "50", stream=stream)
        eventually(lambda: ADAPTER in replica.models)
        replica.stop()
        replica.mode = "stream" if stream else "answer"
        replica.start()
        answer = waiting.result(55)
        assert (answer.status_code, "only" in answer.text) == (200, True)
        assert replica.models.count(ADAPTER) >= 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_request_waits_for_the_restart_of_replicas_whose_engines_are_dead(
    app: FastAPI, count: int, stream: bool
) -> None:
    """Their servers still answer, for as long as they need to end."""
    replicas = [RawReplica(name) for name in "xy"[:count]]
    with api_with(app, *replicas) as client:
        for replica in replicas:
            replica.mode, replica.health = "dead", 503
        assert [ask(client, None, stream=stream).status_code for _ in range(2)] == [503, 503]
        waiting = ask_meanwhile(client, "50", stream=stream)
        eventually(lambda: len(callers_requests(replicas[-1])) == 3)
        replicas[-1].stop()
        replicas[-1].mode, replicas[-1].health = "stream" if stream else "answer", 200
        replicas[-1].start()
        answer = waiting.result(55)
        assert (answer.status_code, replicas[-1].name in answer.text) == (200, True)


@pytest.mark.parametrize("stream", [False, True])
def test_request_that_its_only_replica_lost_with_its_engine_waits_for_the_restart(app: FastAPI, stream: bool) -> None:
    replica = RawReplica("only")
    with api_with(app, replica) as client:
        replica.mode = "dies"
        waiting = ask_meanwhile(client, "50", stream=stream)
        eventually(lambda: replica.mode == "dead" and set(states(client).values()) == {"down"})
        replica.stop()
        replica.mode, replica.health = "stream" if stream else "answer", 200
        replica.start()
        answer = waiting.result(55)
        assert (answer.status_code, "only" in answer.text) == (200, True)
        assert len(callers_requests(replica)) == 2


def test_request_that_two_lives_of_a_replica_died_of_is_sent_to_no_third(app: FastAPI) -> None:
    replica = RawReplica("only")
    with api_with(app, replica) as client:
        replica.mode = "dies"
        waiting = ask_meanwhile(client, "50", stream=False)
        eventually(lambda: replica.mode == "dead" and set(states(client).values()) == {"down"})
        replica.health = 200  # back, and it dies of the request again
        answer = waiting.result(55)
        assert (answer.status_code, len(callers_requests(replica))) == (503, 2)


def test_stream_that_has_begun_is_not_waited_for(app: FastAPI) -> None:
    replica = RawReplica("only")
    with api_with(app, replica) as client:
        replica.mode = "one"
        events = ask(client, "50", stream=True).text.strip().split("\n\n")
        assert json.loads(events[-1].removeprefix("data: "))["error"]["mens"]["code"] == "SERVING_FAILED"
        assert replica.models.count(ADAPTER) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_with_a_second_replica_nobody_waits(app: FastAPI, stream: bool) -> None:
    replicas = [RawReplica(name) for name in "xy"]
    with api_with(app, *replicas) as client, ThreadPoolExecutor(8) as pool:
        for replica in replicas:
            replica.mode = "stream" if stream else "answer"
        replicas[0].stop()
        answers = list(pool.map(lambda _: ask(client, None, stream=stream), range(24)))
        assert {answer.status_code for answer in answers} == {200}
        assert all(replicas[1].name in answer.text for answer in answers)


@pytest.mark.parametrize("wrong", ["soon", "-1", "nan", ""])
def test_wait_that_is_not_a_number_of_seconds_is_refused(app: FastAPI, wrong: str) -> None:
    replica = RawReplica("only")
    with api_with(app, replica) as client:
        refused = ask(client, wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Mens-Max-Wait")

"""A request is sent to one replica after another until a response has begun, on real sockets."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi import FastAPI

from tests.support.gateway import ADAPTER
from tests.support.running_api import idle, served_by, states
from tests.support.socket_replica import RawReplica
from tests.support.waiting import eventually

pytestmark = pytest.mark.network


def test_adapters_requests_stay_at_one_replica(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    first, *others = tier.values()
    assert {served_by(api) for _ in range(10)} == {first.name}
    assert not [model for other in others for model in other.models if model == ADAPTER]
    assert idle(api)


def test_concurrent_requests_are_shared_by_all_replicas(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    def set_modes(mode: str) -> None:
        for replica in tier.values():
            replica.mode = mode

    before = sum(len(replica.asked) for replica in tier.values())
    set_modes("held")
    with ThreadPoolExecutor(24) as threads:
        served = threads.map(lambda _: served_by(api, stream=True), range(24))
        eventually(lambda: sum(len(replica.asked) for replica in tier.values()) == before + 24, what="all are open")
        set_modes("stream")
    names = list(served)
    assert min(names.count(replica.name) for replica in tier.values()) >= 2
    assert idle(api)


@pytest.mark.parametrize(
    ("mode", "streams"),
    [("503", False), ("drop", False), ("dead", False), ("drop", True), ("headers", True), ("dead", True)],
)
def test_request_without_a_first_byte_is_sent_to_the_next_replica(
    api: httpx.Client, tier: dict[str, RawReplica], mode: str, streams: bool
) -> None:
    first, second, _ = tier.values()
    first.mode, second.mode = mode, "stream" if streams else "answer"
    if mode == "dead":
        first.health = 503  # as vLLM answers then
    assert served_by(api, stream=streams) == second.name
    # What a reused connection lost without an answer is sent once more, on a new one.
    assert first.models.count(ADAPTER) in ((1, 2) if mode == "drop" else (1,))
    assert second.models.count(ADAPTER) == 1
    assert idle(api)


@pytest.mark.parametrize("first_byte_seconds", [0.3])
def test_slow_replica_is_tried_again_when_the_others_fail(api: httpx.Client, tier: dict[str, RawReplica]) -> None:
    first, *others = tier.values()
    first.mode = "hang"
    for other in others:
        other.mode = "503"
    with ThreadPoolExecutor(1) as threads:
        served = threads.submit(served_by, api, stream=True)
        eventually(lambda: ADAPTER in first.models, what="the slow one is asked")
        first.mode = "stream"
        assert served.result() == first.name
    assert [replica.models.count(ADAPTER) for replica in tier.values()] == [2, 1, 1]
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


@pytest.mark.parametrize("first_byte_seconds", [0.3])
def test_response_that_is_not_streamed_has_no_first_byte_limit(
    app: FastAPI, api: httpx.Client, tier: dict[str, RawReplica], first_byte_seconds: float
) -> None:
    first, *_ = tier.values()
    first.mode = "hang"
    with pytest.raises(httpx.ReadTimeout):
        api.post("/v1/completions", json={"model": ADAPTER}, timeout=4 * first_byte_seconds)
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

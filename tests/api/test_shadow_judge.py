"""Judged shadow traffic: requests through the API to two adapters, one of which is worse."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api import shadow_judge
from shared.database.evaluation.evals import Evals
from shared.database.gates.shadow_comparisons import ShadowComparisons
from shared.database.tables.gates import ShadowComparisonRow
from tests.support.builders import BASE
from tests.support.gateway import ADAPTER, client_of, register_adapters, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.network

WORSE = f"helper@{'c' * 64}"
SECRET = "the caller's own words"
JSON_CHECK = {"type": "python", "name": "json", "source": "", "mens": {"check": "json_schema", "json_schema": {}}}
JUDGE = {
    "type": "label_model",
    "name": "judge",
    "model": BASE,
    "input": [{"role": "user", "content": "{{ item.messages }} {{ sample.output_text }}"}],
    "labels": ["good", "bad"],
    "passing_labels": ["good"],
}


class TwoAdapters:
    """A replica with two adapters: one answers in JSON, as is wanted, the other does not; and a base that judges.

    Attributes:
        asked: bodies of the requests.
        delay: seconds that the worse one takes.
        status: that it answers with.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.delay, self.status = 0.0, 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = {} if scope["method"] == "GET" else json.loads((await receive())["body"])
        self.asked += [body] if body else []
        status, text = 200, '{"answer": 4}'
        if body.get("model") == WORSE:
            await asyncio.sleep(self.delay)
            status, text = self.status, "four, I think"
        elif body.get("model") == BASE:
            text = json.dumps({"result": "bad" if "four" in json.dumps(body["messages"]) else "good", "steps": []})
        kind = b"text/event-stream" if body.get("stream") else b"application/json"
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        for part in self._parts(body, text):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _parts(self, body: dict[str, Any], text: str) -> list[bytes]:
        if not body.get("stream"):
            choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            return [json.dumps({"model": body.get("model"), "choices": [choice]}).encode()]
        events = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in (text[:5], text[5:])]
        return [b"data: %s\n\n" % json.dumps(event).encode() for event in events] + [b"data: [DONE]\n\n"]

    def requests_to(self, model: str) -> list[dict[str, Any]]:
        return [body for body in self.asked if body["model"] == model]


@pytest.fixture(autouse=True)
def _stored_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_judge, "STORE_SECONDS", 0.1)


@pytest.fixture
def replica() -> Iterator[TwoAdapters]:
    yield from running(TwoAdapters())


@pytest.fixture
def api(app: FastAPI, replica: TwoAdapters) -> Iterator[httpx.Client]:
    register_adapters(app)
    yield from client_of(app, replica.url)


def make_eval(app: FastAPI, *criteria: dict[str, Any], tenant: str = "shared") -> str:
    config = {"type": "custom", "item_schema": {"type": "object"}}
    fields = {"data_source_config": config, "testing_criteria": list(criteria) or [JSON_CHECK]}
    return Evals(app.state.services.database, tenant).create("form", {}, fields).id


def shadow(api: httpx.Client, eval_id: str, main: str = ADAPTER, candidate: str = WORSE) -> None:
    body = {"adapter": main, "shadow": {"adapter": candidate, "share": 1, "eval": eval_id}}
    assert api.put("/v1/aliases/helper", json=body).status_code == 200


def ask(api: httpx.Client, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": SECRET}]
    response = api.post("/v1/chat/completions", json={"model": "helper", "messages": messages} | fields)
    assert response.status_code == 200
    return response


def standing(api: httpx.Client) -> dict[str, Any]:
    found = api.get("/v1/aliases/helper/shadow").json()["data"]
    return found[0] if found else {"wins": 0, "losses": 0, "ties": 0, "errored": 0}


def counted(api: httpx.Client) -> int:
    found = standing(api)
    return int(sum(found[name] for name in ("wins", "losses", "ties", "errored")))


def ask_and_wait(app: FastAPI, api: httpx.Client, **fields: Any) -> httpx.Response:
    """Ask, and wait until what became of the copy is known: of several at once, some would be dropped."""
    traffic = app.state.services.gateway.shadows
    before = traffic.counts.total()
    response = ask(api, **fields)

    def is_known() -> bool:
        is_copied = traffic.counts.total() > before or bool(traffic.judge._decided)
        return is_copied and not traffic._in_flight

    eventually(is_known, what="the copy is judged, or there is none")
    return response


def ask_until_counted(app: FastAPI, api: httpx.Client, times: int, **fields: Any) -> dict[str, Any]:
    """Ask so often, one after the other, so that no copy is dropped."""
    for _ in range(times):
        ask_and_wait(app, api, **fields)
    eventually(lambda: counted(api) == times)
    return standing(api)


def test_worse_adapter_is_found_out_and_gets_no_more_copies(
    app: FastAPI, api: httpx.Client, replica: TwoAdapters
) -> None:
    shadow(api, make_eval(app))
    judge = app.state.services.gateway.shadows.judge
    for _ in range(200):
        assert ask_and_wait(app, api).headers["x-mens-adapter"] == ADAPTER
        if standing(api).get("verdict") == "worse":
            break
    eventually(lambda: judge._decided and not judge._waiting, what="the process knows it")
    found = standing(api)
    assert (found["verdict"], found["wins"], found["errored"]) == ("worse", 0, 0)
    # The e-value of losses alone reaches 20 at the sixth.
    assert 6 <= found["losses"] < 200
    assert (found["difference"], found["incumbent_id"], found["candidate_id"]) == (-1.0, ADAPTER, WORSE)
    copies = len(replica.requests_to(WORSE))
    for _ in range(5):
        ask(api)
    time.sleep(0.2)
    assert len(replica.requests_to(WORSE)) == copies, "it is decided"
    assert standing(api)["losses"] == found["losses"], "a comparison that is decided takes no more"


@pytest.mark.parametrize("stream", [False, True])
def test_better_adapter_wins_and_continues(app: FastAPI, api: httpx.Client, replica: TwoAdapters, stream: bool) -> None:
    shadow(api, make_eval(app), main=WORSE, candidate=ADAPTER)
    found = ask_until_counted(app, api, 8, stream=stream)
    assert (found["wins"], found["losses"], found["verdict"]) == (8, 0, "undecided")
    assert found["log_e"] < 0 < found["interval"][0]
    (copy, *_) = replica.requests_to(ADAPTER)
    assert "stream" not in copy, "the copy is judged whole"


def test_answers_that_are_alike_are_ties_and_a_model_may_judge(
    app: FastAPI, api: httpx.Client, replica: TwoAdapters
) -> None:
    shadow(api, make_eval(app, JUDGE))
    found = ask_until_counted(app, api, 3)
    assert (found["losses"], found["ties"]) == (3, 0)
    judged = replica.requests_to(BASE)
    assert SECRET in json.dumps(judged), "it sees what was asked"
    assert judged[0]["cache_salt"], "tenants stay apart in the prefix cache"


def test_nothing_of_what_was_said_is_stored(app: FastAPI, api: httpx.Client) -> None:
    shadow(api, make_eval(app))
    ask_until_counted(app, api, 2)
    with app.state.services.database.read() as session:
        rows = session.query(ShadowComparisonRow).all()
        stored = json.dumps([{name: str(value) for name, value in vars(row).items()} for row in rows])
    assert len(rows) == 1
    assert SECRET not in stored
    assert "four" not in stored
    assert b"four, I think" not in app.state.services.settings.home.joinpath("mens.db").read_bytes()


def test_slow_shadow_takes_nothing_of_the_callers_time(app: FastAPI, api: httpx.Client, replica: TwoAdapters) -> None:
    replica.delay = 300.0
    shadow(api, make_eval(app))
    ask(api)
    started = time.monotonic()
    for _ in range(10):
        ask(api)
    assert time.monotonic() - started < 60
    counts = app.state.services.gateway.shadows.counts
    eventually(lambda: counts["helper", WORSE, "dropped"] == 7, what="no more than four wait at once")


def test_failure_of_the_shadow_is_an_error_and_no_loss(app: FastAPI, api: httpx.Client, replica: TwoAdapters) -> None:
    replica.status = 500
    shadow(api, make_eval(app))
    found = ask_until_counted(app, api, 2)
    assert (found["errored"], found["losses"], found["last_error"]) == (2, 0, "SERVING_FAILED")


@pytest.mark.parametrize("fields", [{"n": 2}, {"messages": [{"role": "user", "content": "x"}], "n": 3}])
def test_request_for_several_answers_is_copied_and_not_judged(
    app: FastAPI, api: httpx.Client, fields: dict[str, Any]
) -> None:
    shadow(api, make_eval(app))
    ask(api, **fields)
    eventually(lambda: app.state.services.gateway.shadows.counts["helper", WORSE, "answered"] == 1)
    assert counted(api) == 0


def test_comparison_is_the_asking_tenants_alone(app: FastAPI, api: httpx.Client) -> None:
    shadow(api, make_eval(app))
    _, secret = app.state.services.keys.create("other", "acme")
    theirs = {"Authorization": f"Bearer {secret}"}
    messages = [{"role": "user", "content": "?"}]
    body = {"model": "helper", "messages": messages}
    assert api.post("/v1/chat/completions", json=body, headers=theirs).status_code == 200
    comparisons = ShadowComparisons(app.state.services.database, "acme")
    eventually(lambda: bool(comparisons.of_alias("helper")))
    assert counted(api) == 0, "the alias's owner sees nothing of another tenant's requests"
    assert api.get("/v1/aliases/helper/shadow", headers=theirs).json()["data"][0]["losses"] == 1


def test_what_is_judged_is_stored_when_the_process_ends(
    app: FastAPI, replica: TwoAdapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_judge, "STORE_SECONDS", 3600.0)
    services = app.state.services
    register_adapters(app)
    for client in client_of(app, replica.url):
        shadow(client, make_eval(app))
        ask_and_wait(app, client)
        assert not ShadowComparisons(services.database).of_alias("helper")
    assert ShadowComparisons(services.database).of_alias("helper")[0].losses == 1


def test_eval_that_cannot_judge_requests_is_refused_where_the_alias_is_set(app: FastAPI, api: httpx.Client) -> None:
    reference = {"type": "string_check", "name": "r", "operation": "eq", "input": "{{ sample.output_text }}"}
    needs_item = make_eval(app, reference | {"reference": "{{ item.expected }}"})
    theirs = make_eval(app, tenant="acme")
    for eval_id, status, code in (
        (needs_item, 400, "EVAL_INVALID"),
        (theirs, 404, "EVAL_NOT_FOUND"),
        ("no/id", 422, "REQUEST_INVALID"),
    ):
        body = {"adapter": ADAPTER, "shadow": {"adapter": WORSE, "share": 1, "eval": eval_id}}
        response = api.put("/v1/aliases/helper", json=body)
        assert (response.status_code, response.json()["error"]["mens"]["code"]) == (status, code)
    assert api.get("/v1/aliases/helper").json()["shadow"] is None

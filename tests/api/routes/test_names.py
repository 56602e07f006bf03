"""/v1/names, and requests by foreign names: the answering adapter, the name in the response, and tenants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from openai import OpenAI

from shared.database.tenancy import Role
from tests.support.builders import BASE
from tests.support.gateway import ADAPTER, UNPUBLISHED, client_of, register_adapters, running
from tests.support.tenants import ACME, OTHER, Installation

pytestmark = pytest.mark.network

MODEL = "ft:gpt-4o-mini-2024-07-18:acme:support:9xAbC1"
GPT = "gpt-4o-mini-2024-07-18"
ASK: Any = [{"role": "user", "content": "?"}]
QUOTED = '"model":"helper@'
"""Text of an answer that looks like its field ``model``."""


@dataclass
class NamingReplica:
    """Answers in vLLM's shapes, which name the model; the text of an answer has that name too."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await _send(send, b"application/json", [b""])
            return
        body = json.loads((await receive())["body"])
        self.asked.append(body)
        text = f'{QUOTED}{body["model"]}"'
        if scope["path"] == "/v1/responses":
            answer = {"id": "resp_1", "object": "response", "model": body["model"], "output": [text]}
            events = [
                b"event: response.%s\ndata: %s\n\n" % (what, _json({"type": what.decode(), "response": answer}))
                for what in (b"created", b"completed")
            ]
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            answer = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
            part = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
            parts = [part | {"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in (text, "!")]
            events = [b"data: %s\n\n" % _json(part) for part in parts] + [b"data: [DONE]\n\n"]
        if not body.get("stream"):
            await _send(send, b"application/json", [_json(answer)])
        else:  # cut within a field
            whole = b"".join(events)
            await _send(send, b"text/event-stream", [whole[:60], whole[60:]])


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def _send(send: Any, content_type: bytes, pieces: list[bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def replica() -> Iterator[NamingReplica]:
    yield from running(NamingReplica())


@pytest.fixture
def api(app: FastAPI, replica: NamingReplica) -> Iterator[httpx.Client]:
    """A client of the API on a real socket; the alias helper points to `ADAPTER`."""
    register_adapters(app)
    yield from client_of(app, replica.url, "alice")


def put(client: httpx.Client, name: str = MODEL, /, **body: Any) -> dict[str, Any]:
    response = client.put(f"/v1/names/{name}", json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["mens"]["code"]


def openai_of(client: httpx.Client) -> OpenAI:
    key = client.headers["authorization"].removeprefix("Bearer ")
    return OpenAI(base_url=f"{client.base_url}/v1", api_key=key, max_retries=0)


# -- requests to models ------------------------------------------------------------------------------------------------


def test_unmodified_client_asks_a_mapped_name(api: httpx.Client, replica: NamingReplica) -> None:
    put(api, alias="helper", reason="we leave")
    with openai_of(api) as client:
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASK)
        answer = raw.parse()
        assert (answer.model, raw.headers["x-mens-adapter"]) == (MODEL, ADAPTER)
        assert answer.choices[0].message.content == f'{QUOTED}{ADAPTER}"', "text is not touched"
        stream = client.chat.completions.create(model=MODEL, messages=ASK, stream=True)
        parts = list(stream)
        assert {part.model for part in parts} == {MODEL}
        assert "".join(part.choices[0].delta.content or "" for part in parts) == f'{QUOTED}{ADAPTER}"!'
        assert client.completions.create(model=MODEL, prompt="?").model == MODEL
        assert client.responses.create(model=MODEL, input="?").model == MODEL
    events = api.post("/v1/responses", json={"model": MODEL, "input": "?", "stream": True}).text
    assert (events.count(f'"model":"{MODEL}"'), events.count(f'"model":"{ADAPTER}"')) == (2, 0)
    assert {body["model"] for body in replica.asked} == {ADAPTER}


def test_other_names_keep_the_adapter_in_the_answer(api: httpx.Client) -> None:
    put(api, alias="helper")
    for model in ("helper", ADAPTER):
        answer = api.post("/v1/chat/completions", json={"model": model, "messages": ASK}).json()
        assert answer["model"] == ADAPTER


def test_base_by_a_foreign_name(api: httpx.Client, replica: NamingReplica) -> None:
    put(api, GPT, base=BASE)
    response = api.post("/v1/chat/completions", json={"model": GPT, "messages": ASK})
    assert (response.json()["model"], response.headers.get("x-mens-adapter")) == (GPT, None)
    assert replica.asked[-1]["model"] == BASE


def test_moved_alias_moves_its_names_at_once(api: httpx.Client) -> None:
    second = f"helper@{'c' * 64}"
    put(api, alias="helper")
    assert api.post("/v1/chat/completions", json={"model": MODEL, "messages": ASK}).status_code == 200
    api.put("/v1/aliases/helper", json={"adapter": second})
    response = api.post("/v1/chat/completions", json={"model": MODEL, "messages": ASK})
    assert (response.headers["x-mens-adapter"], response.json()["model"]) == (second, MODEL)


def test_split_keeps_a_caller_on_one_adapter_under_both_names(api: httpx.Client) -> None:
    targets = [{"adapter": ADAPTER, "weight": 1}, {"adapter": f"helper@{'c' * 64}", "weight": 1}]
    api.put("/v1/aliases/helper", json={"targets": targets})
    put(api, alias="helper")
    for user in range(12):
        bodies = [{"model": model, "messages": ASK, "user": f"u{user}"} for model in (MODEL, "helper")]
        served = {api.post("/v1/chat/completions", json=body).headers["x-mens-adapter"] for body in bodies}
        assert len(served) == 1


def test_dangling_name_says_what_is_missing(api: httpx.Client, replica: NamingReplica) -> None:
    put(api, alias="helper")
    api.delete("/v1/aliases/helper")
    response = api.post("/v1/chat/completions", json={"model": MODEL, "messages": ASK})
    assert code(response) == (404, "MODEL_NOT_FOUND")
    assert "stands for the alias 'helper'" in response.json()["error"]["message"]
    assert MODEL not in [model["id"] for model in api.get("/v1/models").json()["data"]]
    assert code(api.get(f"/v1/models/{MODEL}")) == (404, "MODEL_NOT_FOUND")
    api.post("/v1/aliases/helper/rollback")
    assert api.post("/v1/chat/completions", json={"model": MODEL, "messages": ASK}).status_code == 200


# -- models and checkpoints -----------------------------------------------------------------------------------------------


def test_names_are_listed_and_retrieved_as_models(api: httpx.Client) -> None:
    put(api, alias="helper")
    put(api, GPT, base=BASE)
    with openai_of(api) as client:
        listed = {model.id: model for model in client.models.list()}
        assert {MODEL, GPT} < listed.keys()
        assert client.models.retrieve(MODEL) == listed[MODEL]
        assert listed[MODEL].owned_by == "shared"
        checkpoint = client.models.retrieve(f"{MODEL}:ckpt-step-1")
        assert checkpoint.id == f"{MODEL}:ckpt-step-1"
    assert code(api.get(f"/v1/models/{MODEL}:ckpt-step-7")) == (404, "MODEL_NOT_FOUND")
    assert code(api.delete(f"/v1/models/{MODEL}")) == (409, "MODEL_NOT_DELETABLE")


def test_checkpoint_that_cannot_be_served_is_refused_clearly(api: httpx.Client) -> None:
    put(api, alias="helper")
    response = api.post("/v1/chat/completions", json={"model": f"{MODEL}:ckpt-step-88", "messages": ASK})
    assert code(response) == (404, "MODEL_NOT_FOUND")
    message = response.json()["error"]["message"]
    assert "no checkpoint of step 88" in message
    assert f"PUT /v1/names/{MODEL}:ckpt-step-88" in message
    put(api, f"{MODEL}:ckpt-step-88", adapter=ADAPTER)
    answer = api.post("/v1/chat/completions", json={"model": f"{MODEL}:ckpt-step-88", "messages": ASK}).json()
    assert answer["model"] == f"{MODEL}:ckpt-step-88"


# -- the routes ----------------------------------------------------------------------------------------------------------


def test_moves_are_recorded_with_actor_and_reason(client: TestClient, app: FastAPI) -> None:
    register_adapters(app)
    made = put(client, alias="helper", reason="we leave")
    assert made == {
        "name": MODEL,
        "tenant": "shared",
        "stands_for": {"kind": "alias", "name": "helper"},
        "version": 1,
        "moved_at": made["moved_at"],
    }
    response = client.get(f"/v1/names/{MODEL}")
    assert (response.json(), response.headers["etag"]) == (made, '"1"')
    assert client.get("/v1/names").json()["data"] == [made]
    stale = client.put(f"/v1/names/{MODEL}", json={"adapter": ADAPTER}, headers={"If-Match": '"7"'})
    assert code(stale) == (409, "ALIAS_VERSION_CONFLICT")
    deleted = client.delete(f"/v1/names/{MODEL}", params={"reason": "over"}).json()
    assert deleted == {"id": MODEL, "object": "name", "deleted": True}
    moves = client.get(f"/v1/names/{MODEL}/history").json()["data"]
    assert [(move["verb"], move["actor"], move["reason"], move["from"], move["to"]) for move in moves] == [
        ("delete", "test", "over", {"kind": "alias", "name": "helper"}, None),
        ("set", "test", "we leave", None, {"kind": "alias", "name": "helper"}),
    ]
    assert code(client.get(f"/v1/names/{MODEL}")) == (404, "NAME_NOT_FOUND")


@pytest.mark.parametrize("body", [{}, {"alias": "helper", "base": BASE}, {"alias": "No Name"}, {"adapters": []}])
def test_invalid_mappings_are_refused(client: TestClient, body: dict[str, Any]) -> None:
    assert code(client.put(f"/v1/names/{MODEL}", json=body))[0] == 422


@pytest.mark.parametrize("name", ['a"b', "a@b", "a b", "ä", "x" * 257, ":a"])
def test_invalid_names_are_refused(client: TestClient, app: FastAPI, name: str) -> None:
    register_adapters(app)
    response = client.put(f"/v1/names/{name}", json={"alias": "helper"})
    assert code(response) == (422, "NAME_INVALID")
    assert "e.g. ft:gpt-4o-mini" in response.json()["error"]["message"]


def test_unpublished_adapter_is_refused(client: TestClient, app: FastAPI) -> None:
    register_adapters(app)
    assert code(client.put(f"/v1/names/{MODEL}", json={"adapter": UNPUBLISHED})) == (409, "ADAPTER_NOT_SERVABLE")


def test_only_an_admin_maps_moves_and_deletes_a_base_s_name(app: FastAPI, anonymous: TestClient) -> None:
    made = Installation(app)
    trainer, admin = (made.bearer(ACME, role) for role in (Role.TRAINER, Role.ADMIN))
    alias = made.alias(ACME)
    path = f"/v1/names/{GPT}"
    assert code(anonymous.put(path, json={"base": BASE}, headers=trainer)) == (403, "ROLE_INSUFFICIENT")
    assert anonymous.put(path, json={"base": BASE}, headers=admin).status_code == 200
    assert code(anonymous.put(path, json={"alias": alias}, headers=trainer)) == (403, "ROLE_INSUFFICIENT")
    assert code(anonymous.delete(path, headers=trainer)) == (403, "ROLE_INSUFFICIENT")
    assert anonymous.put(f"/v1/names/{MODEL}", json={"alias": alias}, headers=trainer).status_code == 200
    assert anonymous.delete(path, headers=admin).status_code == 200


def test_two_tenants_have_the_same_name(app: FastAPI, anonymous: TestClient) -> None:
    made = Installation(app)
    bearers = {tenant: made.bearer(tenant, Role.TRAINER) for tenant in (ACME, OTHER)}
    for tenant, headers in bearers.items():
        response = anonymous.put(f"/v1/names/{MODEL}", json={"alias": made.alias(tenant)}, headers=headers)
        assert response.json()["version"] == 1
    for tenant, headers in bearers.items():
        assert anonymous.get(f"/v1/models/{MODEL}", headers=headers).json()["owned_by"] == tenant
        moves = anonymous.get(f"/v1/names/{MODEL}/history", headers=headers).json()["data"]
        assert len(moves) == 1
    anonymous.delete(f"/v1/names/{MODEL}", headers=bearers[ACME])
    assert code(anonymous.get(f"/v1/models/{MODEL}", headers=bearers[ACME])) == (404, "MODEL_NOT_FOUND")
    assert anonymous.get(f"/v1/models/{MODEL}", headers=bearers[OTHER]).status_code == 200


# -- jobs --------------------------------------------------------------------------------------------------------------


def test_job_on_a_mapped_base_shows_both_names(client: TestClient, train_file: str) -> None:
    body = {"model": GPT, "training_file": train_file}
    refused = client.post("/v1/fine_tuning/jobs", json=body)
    assert code(refused) == (404, "MODEL_NOT_FOUND")
    assert "An admin can map" in refused.json()["error"]["message"]
    put(client, GPT, base=BASE)
    job = client.post("/v1/fine_tuning/jobs", json=body).json()
    assert (job["model"], job["mens"]["base_model"]) == (GPT, BASE)
    again = client.get(f"/v1/fine_tuning/jobs/{job['id']}").json()
    assert (again["model"], again["mens"]["base_model"]) == (GPT, BASE)
    native = client.get(f"/v1/jobs/{job['id']}").json()
    assert (native["base_model"], native["contract"]["model"]["hf_repo"]) == (BASE, BASE)
    plain = client.post("/v1/fine_tuning/jobs", json=body | {"model": BASE}).json()
    assert (plain["model"], plain["mens"]["base_model"]) == (BASE, BASE)

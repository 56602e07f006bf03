"""/v1/aliases: moves and their history, splits that keep a caller on one adapter, and shadows."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from api.inference.gateway import sticky_key
from api.inference.shadow import ShadowTraffic
from api.main import create_app
from shared.base_models.catalog import load_catalog, save_catalog
from shared.database.adapters import NewAdapter
from shared.database.leases import Leases
from shared.database.records import Kind, Submission
from tests.support.asgi_server import serve
from tests.support.builders import BASE, at_once
from tests.support.gateway import FakeReplica, client_of, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.network

OLD, NEW, THIRD = (f"helper@{digit * 64}" for digit in "123")
REFUSED = f"helper@{'c' * 64}"  # the replica responses 404
SECRET, ELSEWHERE = f"helper@{'b' * 64}", f"other@{'d' * 64}"
HALVES = [{"adapter": OLD, "weight": 50}, {"adapter": NEW, "weight": 50}]


@pytest.fixture
def adapters(app: FastAPI) -> str:
    """Adapters that one job made, and an alias that it moved; returns the job's id."""
    jobs = Leases(app.state.services.database, 60)
    submission = Submission(kind=Kind.FINETUNE, base_model=BASE, name="helper", contract={}, plan={})
    job, _ = app.state.services.jobs.submit(submission)
    lease = jobs.claim(job.id, "w")
    assert lease

    def adapter(name: str) -> NewAdapter:
        return NewAdapter(
            id=name,
            digest=name.partition("@")[2],
            base_model=BASE if name != ELSEWHERE else "elsewhere",
            step=1,
            final=name == OLD,
            published=name != SECRET,
            manifest={},
        )

    new_adapters = [adapter(name) for name in (OLD, NEW, THIRD, REFUSED, SECRET, ELSEWHERE)]
    jobs.finish(lease, {}, adapters=new_adapters, alias="helper")
    return job.id


@pytest.fixture
def replica() -> Iterator[FakeReplica]:
    yield from running(FakeReplica())


@pytest.fixture
def api(app: FastAPI, replica: FakeReplica, adapters: str) -> Iterator[httpx.Client]:
    """A client of the API on a real socket, with a real key."""
    yield from client_of(app, replica.url, "alice")


def put(client: httpx.Client, name: str = "prod", /, **body: Any) -> dict[str, Any]:
    response = client.put(f"/v1/aliases/{name}", json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def code(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert error["message"]
    return response.status_code, error["mens"]["code"]


def served_by(client: httpx.Client, alias: str = "prod", **body: Any) -> str:
    """The adapter that generated the response, by the header and by the replica."""
    response = client.post("/v1/chat/completions", json={"model": alias, **body})
    assert response.status_code == 200, response.text
    assert response.headers["x-mens-adapter"] == response.json()["served"]
    return str(response.json()["served"])


# -- moves ---------------------------------------------------------------------------------------------------------


def test_alias_of_one_adapter(client: TestClient, adapters: str) -> None:
    alias = put(client, adapter=OLD, reason="first")
    assert alias == {
        "name": "prod",
        "tenant": "shared",
        "hides": None,
        "version": 1,
        "adapter_id": OLD,
        "targets": [{"adapter": OLD, "weight": 100}],
        "shadow": None,
        "moved_at": alias["moved_at"],
    }
    response = client.get("/v1/aliases/prod")
    assert (response.json(), response.headers["etag"]) == ({**alias, "governed_by": None}, '"1"')
    listed = client.get("/v1/aliases").json()
    assert (listed["object"], [entry["name"] for entry in listed["data"]]) == ("list", ["helper", "prod"])
    assert put(client, "older", adapter_id=OLD)["adapter_id"] == OLD, "the field name of the first release"


def test_alias_with_a_split_and_a_shadow(client: TestClient, adapters: str) -> None:
    shadow = {"adapter": THIRD, "share": 0.1}
    alias = put(client, targets=[{"adapter": OLD, "weight": 90}, {"adapter": NEW, "weight": 10}], shadow=shadow)
    assert (alias["targets"][1], alias["shadow"], alias["adapter_id"]) == ({"adapter": NEW, "weight": 10}, shadow, OLD)
    [entry] = [model for model in client.get("/v1/models").json()["data"] if model["id"] == "prod"]
    assert (entry["mens"]["kind"], entry["mens"]["adapter_id"], entry["mens"]["base_model"]) == ("alias", OLD, BASE)
    assert entry["mens"]["targets"] == alias["targets"]


def test_history_has_actor_and_reason(client: TestClient, adapters: str, app: FastAPI) -> None:
    put(client, "helper", adapter=NEW, reason="better answers")
    client.post("/v1/aliases/helper/rollback", json={"reason": "it swears"})
    client.delete("/v1/aliases/helper", params={"reason": "no longer used"})
    [key] = app.state.services.keys.all()
    moves = client.get("/v1/aliases/helper/history").json()["data"]
    assert [(move["version"], move["verb"], move["actor"], move["actor_id"], move["reason"]) for move in moves] == [
        (4, "delete", "test", key.id, "no longer used"),
        (3, "rollback", "test", key.id, "it swears"),
        (2, "set", "test", key.id, "better answers"),
        (1, "set", adapters, adapters, "The job succeeded."),
    ]
    where = [[place and place["targets"][0]["adapter"] for place in (move["from"], move["to"])] for move in moves]
    assert where == [[OLD, None], [NEW, OLD], [OLD, NEW], [None, OLD]]
    assert all(move["moved_at"] for move in moves)
    page = client.get("/v1/aliases/helper/history", params={"before": 3, "limit": 1}).json()["data"]
    assert [move["version"] for move in page] == [2]


def test_rollback_to_the_last_target_and_to_a_version(client: TestClient, adapters: str) -> None:
    put(client, adapter=OLD)
    put(client, targets=HALVES)
    put(client, adapter=NEW)
    rolled_back = client.post("/v1/aliases/prod/rollback")
    assert (rolled_back.json()["targets"], rolled_back.headers["etag"]) == (HALVES, '"4"')
    assert client.post("/v1/aliases/prod/rollback", json={"to_version": 1}).json()["adapter_id"] == OLD
    response = client.post("/v1/aliases/prod/rollback", json={"to_version": 9})
    assert code(response) == (404, "ALIAS_VERSION_NOT_FOUND")


def test_deleted_alias_is_unknown_until_a_rollback(client: TestClient, adapters: str) -> None:
    assert client.delete("/v1/aliases/helper").json() == {"id": "helper", "object": "alias", "deleted": True}
    assert code(client.get("/v1/aliases/helper")) == (404, "ALIAS_NOT_FOUND")
    assert code(client.post("/v1/completions", json={"model": "helper"})) == (404, "MODEL_NOT_FOUND")
    assert "helper" not in [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert client.post("/v1/aliases/helper/rollback").json()["adapter_id"] == OLD


def test_rollback_does_not_take_the_name_of_a_base(client: TestClient, app: FastAPI, adapters: str) -> None:
    client.delete("/v1/aliases/helper")
    path = app.state.services.settings.catalog_path
    catalog = load_catalog(path)
    save_catalog(path, catalog.having(catalog.bases[0].model_copy(update={"name": "helper"})))
    assert code(client.post("/v1/aliases/helper/rollback")) == (400, "NAME_INVALID")


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ({"adapter": "helper@none"}, 404, "ADAPTER_NOT_FOUND"),
        ({"adapter": SECRET}, 409, "ADAPTER_NOT_SERVABLE"),
        ({"adapter": OLD, "shadow": {"adapter": SECRET, "share": 0.5}}, 409, "ADAPTER_NOT_SERVABLE"),
        ({"targets": [*HALVES, {"adapter": ELSEWHERE, "weight": 1}]}, 400, "ALIAS_BASES_DIFFER"),
        ({"targets": [HALVES[0], HALVES[0]]}, 400, "REQUEST_INVALID"),
        ({}, 422, "REQUEST_INVALID"),
        ({"adapter": OLD, "targets": HALVES}, 422, "REQUEST_INVALID"),
        ({"adapter": OLD, "wieght": 3}, 422, "REQUEST_INVALID"),
        ({"adapter": "a\0b"}, 422, "REQUEST_INVALID"),
        ({"targets": []}, 422, "REQUEST_INVALID"),
        ({"targets": [{"adapter": OLD, "weight": 0}]}, 422, "REQUEST_INVALID"),
        ({"targets": [{"adapter": OLD, "weight": "5"}]}, 422, "REQUEST_INVALID"),
        ({"adapter": OLD, "shadow": {"adapter": NEW, "share": 1.5}}, 422, "REQUEST_INVALID"),
        ({"adapter": OLD, "reason": "x" * 501}, 422, "REQUEST_INVALID"),
        ({"adapter": OLD, "reason": "a\0b"}, 422, "REQUEST_INVALID"),
    ],
)
def test_invalid_moves_are_refused(
    client: TestClient, adapters: str, body: dict[str, Any], status: int, expected: str
) -> None:
    assert code(client.put("/v1/aliases/prod", json=body)) == (status, expected)
    assert code(client.get("/v1/aliases/prod")) == (404, "ALIAS_NOT_FOUND")


def test_invalid_names_are_refused(client: TestClient, adapters: str) -> None:
    assert code(client.put(f"/v1/aliases/{BASE}", json={"adapter": OLD})) == (400, "NAME_INVALID")
    for name in ("UPPER", "a b", "x" * 65, "a%00b"):
        for refused in (client.put(f"/v1/aliases/{name}", json={"adapter": OLD}), client.get(f"/v1/aliases/{name}")):
            assert code(refused) == (422, "NAME_INVALID")
            error = refused.json()["error"]
            assert (error["param"], "lower-case letters" in error["message"]) == ("name", True)
            assert "[a-z" not in refused.text


def test_slash_in_a_name_is_refused_with_the_name(client: TestClient, adapters: str) -> None:
    for method, path in (("PUT", "team%2Fx"), ("GET", "team%2fx"), ("POST", "team%2Fx/rollback")):
        refused = client.request(method, f"/v1/aliases/{path}", json={"adapter": OLD})
        assert code(refused) == (422, "NAME_INVALID")
        assert "'team/x" in refused.json()["error"]["message"]
    assert code(client.put("/v1/aliases/team/x", json={"adapter": OLD})) == (404, "ROUTE_NOT_FOUND")


def test_invalid_adapter_ids_are_refused(client: TestClient, adapters: str) -> None:
    for adapter in ("", "a b", "x" * 161, "\0"):
        error = client.put("/v1/aliases/prod", json={"adapter": adapter}).json()["error"]
        assert (error["mens"]["code"], error["param"]) == ("REQUEST_INVALID", "adapter")
        assert "is not an adapter id" in error["message"]


@pytest.mark.parametrize("model", ["\0", "a\0b", "prod\n"])
def test_unprintable_model_names_are_unknown(client: TestClient, adapters: str, model: str) -> None:
    response = client.post("/v1/completions", content=json.dumps({"model": model}))
    assert code(response) == (404, "MODEL_NOT_FOUND")


def test_version_zero_is_a_name_that_does_not_exist_yet(client: TestClient, adapters: str) -> None:
    """The console creates an alias only if no other caller has created it meanwhile."""
    headers = {"If-Match": '"0"'}
    assert client.put("/v1/aliases/fresh", json={"adapter": NEW}, headers=headers).status_code == 200
    again = client.put("/v1/aliases/fresh", json={"adapter": NEW}, headers=headers)
    assert code(again) == (409, "ALIAS_VERSION_CONFLICT")


def test_move_from_an_old_version_is_refused(client: TestClient, adapters: str) -> None:
    put(client, adapter=OLD)
    tag = client.get("/v1/aliases/prod").headers["etag"]
    moved = client.put("/v1/aliases/prod", json={"adapter": NEW}, headers={"If-Match": tag})
    assert (moved.status_code, moved.headers["etag"]) == (200, '"2"')
    for method, path in (("PUT", ""), ("POST", "/rollback"), ("DELETE", "")):
        body = {"json": {"adapter": THIRD}} if method == "PUT" else {}
        response = client.request(method, f"/v1/aliases/prod{path}", headers={"If-Match": tag}, **body)
        assert code(response) == (409, "ALIAS_VERSION_CONFLICT")
        assert response.json()["error"]["mens"]["details"] == {"version": 2}
    assert client.get("/v1/aliases/prod").json()["adapter_id"] == NEW
    for tag, status in (("*", 200), ('W/"3"', 200), ("4", 200), ("abc", 400), ("", 400)):
        response = client.post("/v1/aliases/prod/rollback", headers={"If-Match": tag})
        assert response.status_code == status, tag


def test_concurrent_puts_are_moves_one_after_the_other(api: httpx.Client) -> None:
    places = [OLD, NEW, THIRD]
    at_once(3, lambda index: put(api, adapter=places[index]))
    moves = api.get("/v1/aliases/prod/history").json()["data"]
    assert [move["version"] for move in moves] == [3, 2, 1]
    assert [move["from"] for move in moves] == [moves[1]["to"], moves[2]["to"], None]

    def move(index: int) -> int:
        target = {"adapter": places[index], "weight": 7}
        headers = {"If-Match": '"3"'}
        return api.put("/v1/aliases/prod", json={"targets": [target]}, headers=headers).status_code

    assert sorted(at_once(3, move)) == [200, 409, 409]
    assert len(api.get("/v1/aliases/prod/history").json()["data"]) == 4


def test_moves_without_a_key_are_refused(anonymous: TestClient, adapters: str) -> None:
    assert code(anonymous.put("/v1/aliases/prod", json={"adapter": OLD})) == (401, "KEY_MISSING")
    assert code(anonymous.post("/v1/aliases/helper/rollback")) == (401, "KEY_MISSING")
    assert code(anonymous.delete("/v1/aliases/helper")) == (401, "KEY_MISSING")


# -- routing -------------------------------------------------------------------------------------------------------


def test_rollback_applies_to_the_next_request(
    api: httpx.Client, record_property: Callable[[str, object], None]
) -> None:
    put(api, adapter=OLD)
    put(api, adapter=NEW)
    assert served_by(api) == NEW
    started = time.perf_counter()
    assert api.post("/v1/aliases/prod/rollback", json={"reason": "bad"}).status_code == 200
    assert served_by(api) == OLD
    seconds = time.perf_counter() - started
    record_property("rollback_seconds", seconds)
    print(f"from the call to the first response by the old adapter: {seconds * 1000:.1f} ms")


def test_adapter_header_is_set_for_ids_and_not_for_bases(api: httpx.Client) -> None:
    assert served_by(api, NEW) == NEW
    response = api.post("/v1/chat/completions", json={"model": BASE})
    assert "x-mens-adapter" not in response.headers, "a base has no adapter"


def test_users_are_split_and_stay_on_their_adapter(api: httpx.Client) -> None:
    put(api, targets=HALVES)
    for field in ("user", "safety_identifier"):
        found = [[served_by(api, **{field: f"u{number}"}) for number in range(24)] for _ in range(2)]
        assert found[0] == found[1]
        assert set(found[0]) == {OLD, NEW}


def test_session_stays_on_its_adapter(api: httpx.Client) -> None:
    put(api, targets=HALVES)

    def of(session: str, text: str) -> str:
        body = {"model": "prod", "messages": [{"role": "user", "content": text}]}
        response = api.post("/v1/chat/completions", json=body, headers={"X-Session-Id": session})
        return response.headers["x-mens-adapter"]

    found = [{of(f"session {number}", text) for text in ("a", "b", "c", "d")} for number in range(12)]
    assert all(len(adapters) == 1 for adapters in found)
    assert set().union(*found) == {OLD, NEW}


def test_conversation_stays_on_its_adapter(api: httpx.Client) -> None:
    put(api, targets=HALVES)
    begun = set()
    for number in range(16):
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": f"question {number}"}]
        first = served_by(api, messages=messages)
        messages += [{"role": "assistant", "content": "?"}, {"role": "user", "content": "and then?"}]
        assert served_by(api, messages=messages) == first
        begun.add(first)
    assert begun == {OLD, NEW}, "conversations that share a system prompt are split"


def test_another_process_chooses_the_same_adapter(app: FastAPI, api: httpx.Client) -> None:
    put(api, targets=HALVES)
    for url in serve(create_app(app.state.services.settings), "on"):
        with httpx.Client(base_url=url, headers=api.headers) as other:
            for number in range(12):
                assert served_by(api, user=f"u{number}") == served_by(other, user=f"u{number}")


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["user", "safety_identifier", "messages", "prompt", "input"]), json_values))
def test_any_body_has_a_sticky_key(body: dict[str, Any]) -> None:
    assert sticky_key(body).encode("ascii") == sticky_key(dict(body)).encode()


@pytest.mark.parametrize("beginning", ["text", "chat"])
def test_different_beginnings_have_different_sticky_keys(beginning: str) -> None:
    def key(text: str) -> str:
        chat = [{"role": "user", "content": text}]
        return sticky_key({"input": text if beginning == "text" else chat})

    assert key("one") == key("one") != key("two")


# -- shadows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_shadow_gets_a_copy_after_the_callers_response(
    app: FastAPI, api: httpx.Client, replica: FakeReplica, stream: bool
) -> None:
    put(api, adapter=OLD, shadow={"adapter": THIRD, "share": 1})
    body = {"model": "prod", "messages": [{"role": "user", "content": "?"}], "stream": stream, "stop": ["x"]}
    with api.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["x-mens-adapter"] == OLD
        chunks = response.iter_raw()
        next(chunks)
        assert len(replica.asked) == 1 or not stream, "not before the caller has the whole response"
        assert len(list(chunks)) > 10 or not stream
    eventually(lambda: app.state.services.gateway.shadows.counts["prod", THIRD, "answered"] == 1)
    first, second = replica.asked
    assert (first["model"], second["model"]) == (OLD, THIRD)
    assert {**first, "model": ""} == {**second, "model": ""}


def test_failing_shadow_does_not_affect_the_caller(app: FastAPI, api: httpx.Client) -> None:
    put(api, adapter=OLD, shadow={"adapter": REFUSED, "share": 1})
    assert [served_by(api) for _ in range(3)] == [OLD] * 3
    eventually(lambda: app.state.services.gateway.shadows.counts["prod", REFUSED, "failed"] == 3)


def test_shadow_gets_its_share_of_the_requests(app: FastAPI, api: httpx.Client, replica: FakeReplica) -> None:
    put(api, adapter=OLD, shadow={"adapter": THIRD, "share": 0.5})
    for _ in range(60):
        assert served_by(api) == OLD
    put(api, adapter=OLD)
    assert served_by(api) == OLD
    counts = app.state.services.gateway.shadows.counts
    eventually(lambda: sum(counts.values()) == sum(sent["model"] == THIRD for sent in replica.asked))
    assert 10 < sum(counts.values()) < 50


def test_disconnect_sends_no_copy(api: httpx.Client, replica: FakeReplica) -> None:
    put(api, adapter=OLD, shadow={"adapter": THIRD, "share": 1})
    with api.stream("POST", "/v1/completions", json={"model": "prod", "stream": True}) as response:
        next(response.iter_raw())
    assert replica.abandoned.wait(30)
    time.sleep(0.2)
    assert [sent["model"] for sent in replica.asked] == [OLD]


def test_copies_over_the_limit_are_dropped_and_close_cancels_the_rest(replica: FakeReplica) -> None:
    replica.delay = 60

    async def offer() -> ShadowTraffic:
        traffic = ShadowTraffic(limit=2)
        async with httpx.AsyncClient(timeout=60) as client:
            request = client.build_request("POST", replica.url, json={"model": THIRD})
            for _ in range(5):
                await traffic.offer("prod", THIRD, lambda: client.send(request, stream=True))
            await asyncio.to_thread(eventually, lambda: len(replica.asked) == 2)
            started = time.monotonic()
            await traffic.close()
            assert time.monotonic() - started < 30, "it does not wait for the replica"
        return traffic

    assert asyncio.run(offer()).counts == {("prod", THIRD, "dropped"): 3}
    assert replica.abandoned.wait(30)
    assert len(replica.asked) == 2


def test_copy_without_a_replica_is_counted_as_failed(app: FastAPI, api: httpx.Client) -> None:
    async def nowhere() -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.get("http://127.0.0.1:9")

    async def offer() -> None:
        await app.state.services.gateway.shadows.offer("prod", THIRD, nowhere)
        await asyncio.to_thread(eventually, lambda: bool(app.state.services.gateway.shadows.counts))

    asyncio.run(offer())
    assert app.state.services.gateway.shadows.counts == {("prod", THIRD, "failed"): 1}

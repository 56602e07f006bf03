"""The wall, around an application that says which path reached it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from serving.runtime import process_settings
from serving.wall import KEYED_ROUTES, OPEN_ROUTES, Wall, configured_dtype, engine_dtype, serving_limits
from shared.catalog import TwinOf

KEY = "wall-key"
ZEROS = "0" * 64


class Inside:
    """A fake ASGI application that remembers the scopes which reached it."""

    def __init__(self):
        self.scopes = []
        self.bodies = []

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"inside"})
            self.bodies.append((await receive())["body"] if scope["method"] == "POST" else b"")


class Reply:
    def __init__(self, messages):
        self.messages = messages
        start, body = messages[0], messages[-1]
        self.status = start.get("status")
        self.headers = dict(start.get("headers", []))
        self.body = body.get("body", b"")

    @property
    def error(self):
        return json.loads(self.body)["error"]


def call(wall, method, path, *, key=KEY, raw=None, headers=None, body=b"", **scope):
    sent = []

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message)

    if headers is None:
        headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    fields = {"type": "http", "method": method, "path": path, "headers": headers, "raw_path": raw or path.encode()}
    asyncio.run(wall(fields | scope, receive, send))
    return Reply(sent)


@pytest.fixture
def inside():
    return Inside()


@pytest.fixture
def wall(inside, lab, tmp_path):
    return Wall(inside, KEY, lambda: lab.store(tmp_path / "cache"))


@pytest.mark.parametrize(("method", "path"), sorted(OPEN_ROUTES | KEYED_ROUTES))
def test_allowed_routes_pass_with_the_key(wall, method, path):
    assert call(wall, method, path).body == b"inside"


def test_the_body_reaches_vllm_as_it_came(wall, inside):
    for body in (b"", b'{"model": "a", "messages": []}', b"not JSON", b"\xff\xfe"):
        call(wall, "POST", "/v1/completions", body=body)
        assert inside.bodies.pop() == body


@pytest.mark.parametrize(("method", "path"), sorted(KEYED_ROUTES))
def test_allowed_routes_ask_for_the_key(wall, inside, method, path):
    reply = call(wall, method, path, key=None)
    assert (reply.status, reply.error["code"]) == (401, "KEY_MISSING")
    assert reply.headers[b"www-authenticate"] == b"Bearer"
    assert inside.scopes == []


def test_health_needs_no_key(wall):
    assert call(wall, "GET", "/health", key=None).status == 200


GIVEN = [
    b"",
    b"Bearer",
    b"Bearer ",
    b"Bearer wall-ke",
    b"Bearer wall-key ",
    b"Basic wall-key",
    b"wall-key",
    b"Bearer \xff",
]


@pytest.mark.parametrize("given", GIVEN)
def test_wrong_keys(wall, inside, given):
    reply = call(wall, "GET", "/v1/models", headers=[(b"authorization", given)])
    assert (reply.status, reply.error["code"]) == (401, "KEY_INVALID")
    assert inside.scopes == []


def test_a_second_key_does_not_count(wall):
    headers = [(b"authorization", b"Bearer no"), (b"authorization", b"Bearer wall-key")]
    assert call(wall, "GET", "/v1/models", headers=headers).status == 401


def test_scheme_in_any_case(wall):
    assert call(wall, "GET", "/v1/models", headers=[(b"Authorization", b"bearer wall-key")]).status == 200


def test_without_a_configured_key_nobody_is_asked(inside):
    assert call(Wall(inside, ""), "GET", "/v1/models", key=None).status == 200


CLOSED = [
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/adapters"),
    ("POST", "/invocations"),
    ("GET", "/ping"),
    ("GET", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/"),
    ("GET", ""),
    ("GET", "/health/"),
    ("HEAD", "/health"),
    ("POST", "/health"),
    ("get", "/health"),
    ("GET", "/Health"),
    ("GET", "//health"),
    ("GET", "/health/../docs"),
    ("GET", "/v1/models/x"),
    ("GET", "/v1/chat/completions"),
    ("DELETE", "/v1/models"),
    ("OPTIONS", "/v1/models"),
    ("POST", "/v1/chat/completions/batch"),
    ("POST", "/v1//chat/completions"),
    ("GET", "/v1/models\n"),
    ("GET", "/v1/models;x"),
    ("GET", "/mens/adapters"),
    ("GET", "/mens/adapters/"),
    ("POST", f"/mens/adapters/a@{ZEROS}"),
    ("GET", f"/mens/adapters/../a@{ZEROS}"),
    ("GET", f"/mens/adapters//a@{ZEROS}"),
    ("GET", f"//mens/adapters/a@{ZEROS}"),
]


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_everything_else_is_closed(wall, inside, method, path):
    reply = call(wall, method, path)
    assert reply.status == 404
    assert reply.error["code"] == "ROUTE_NOT_FOUND"
    assert {"message", "type", "param", "code"} <= reply.error.keys()
    assert inside.scopes == []


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("/v1/models", b"/v1/%6dodels"),
        ("/v1/models", b"/%76%31/models"),
        ("/v1/models", b"/v1%2fmodels"),
        ("/health", b"/x/..%2fhealth"),
        ("/health", b"/v1/load_lora_adapter"),
        (f"/mens/adapters/a@{ZEROS}", f"/mens/adapters/%61@{ZEROS}".encode()),
        (f"/mens/adapters/../a@{ZEROS}", f"/mens/adapters/..%2fa@{ZEROS}".encode()),
    ],
)
def test_paths_spelled_in_a_roundabout_way_are_closed(wall, inside, path, raw):
    reply = call(wall, "GET", path, raw=raw)
    assert (reply.status, reply.error["code"]) == (404, "ROUTE_NOT_FOUND")
    assert inside.scopes == []


def test_mount_point_is_closed(wall):
    assert call(wall, "GET", "/v1/models", root_path="/v1").status == 404


def test_server_without_raw_path(wall):
    assert call(wall, "GET", "/v1/models", raw_path=None).status == 200


def test_web_socket_is_refused(wall, inside):
    reply = call(wall, "GET", "/v1/realtime", type="websocket")
    assert reply.messages == [{"type": "websocket.close", "code": 1008}]
    assert inside.scopes == []


def test_lifespan_passes(wall, inside):
    asyncio.run(wall({"type": "lifespan"}, None, None))
    assert inside.scopes == [{"type": "lifespan"}]


def test_unknown_scope_goes_nowhere(wall, inside):
    assert call_raw(wall, {"type": "gossip"}) == []
    assert inside.scopes == []


def test_a_stopping_replica_waits_for_no_half_sent_request_and_answers_nothing_new(wall, inside):
    server = SimpleNamespace(should_exit=False)
    app = SimpleNamespace(state=SimpleNamespace(server=server))
    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    answers = []

    def scope(method, path):
        return {
            "type": "http",
            "method": method,
            "path": path,
            "headers": headers,
            "raw_path": path.encode(),
            "app": app,
        }

    async def send(message):
        answers.append(message.get("status"))

    async def test():
        half = asyncio.create_task(wall(scope("POST", "/v1/completions"), asyncio.Event().wait, send))
        await asyncio.sleep(0.01)
        server.should_exit = True
        async with asyncio.timeout(5):
            await half
            await wall(scope("GET", "/health"), None, send)
            await wall(scope("GET", "/mens/limits"), None, send)

    asyncio.run(test())
    assert [status for status in answers if status] == [503, 503, 503]
    assert inside.scopes == []


def call_raw(wall, scope):
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(wall(scope, None, send))
    return sent


@pytest.mark.parametrize("at", ["@", "%40"])
def test_sound_adapter(wall, lab, at):
    adapter_id = lab.publish("sound", seed=21).adapter_id
    reply = call(
        wall, "GET", f"/mens/adapters/{adapter_id}", raw=f"/mens/adapters/{adapter_id}".replace("@", at).encode()
    )
    assert (reply.status, json.loads(reply.body)["id"]) == (200, adapter_id)


def test_adapter_check_asks_for_the_key(wall):
    assert call(wall, "GET", f"/mens/adapters/a@{ZEROS}", key=None).status == 401


def test_refused_adapters_say_why(wall, lab):
    wide = lab.publish("wide", rank=17).adapter_id
    for adapter_id, status, code in [
        (f"a@{ZEROS}", 404, "ADAPTER_NOT_FOUND"),
        ("a", 400, "NAME_INVALID"),
        (wide, 422, "ADAPTER_RANK_TOO_LARGE"),
    ]:
        reply = call(wall, "GET", f"/mens/adapters/{adapter_id}")
        assert (reply.status, reply.error["code"]) == (status, code)
        assert reply.error["remedy"]


def test_a_fault_of_the_check_itself_is_no_verdict(inside):
    def broken():
        raise OSError("disk on fire")

    reply = call(Wall(inside, KEY, broken), "GET", f"/mens/adapters/a@{ZEROS}")
    assert (reply.status, reply.error["code"]) == (500, "INTERNAL_ERROR")
    assert b"fire" not in reply.body


def test_no_wall_without_settings(monkeypatch, inside):
    from serving.runtime import process_settings
    from shared.errors import InvalidRequest

    process_settings.cache_clear()
    monkeypatch.delenv("MENS_SERVING_BASE", raising=False)
    with pytest.raises(InvalidRequest):
        Wall(inside)


def test_the_limits_are_told_to_whom_has_the_key(wall, inside, monkeypatch):
    monkeypatch.setenv("MENS_SERVING_BASE", "tiny")
    monkeypatch.setenv("MENS_SERVING_MAX_LORA_RANK", "20")
    process_settings.cache_clear()
    try:
        assert call(wall, "GET", "/mens/limits", key=None).error["code"] == "KEY_MISSING"
        answer = json.loads(call(wall, "GET", "/mens/limits").body)
    finally:
        process_settings.cache_clear()
    assert (answer["base"], answer["max_lora_rank"], answer["max_model_len"]) == ("tiny", 32, None)
    assert not inside.scopes


def limits_of(lab, **settings):
    return serving_limits(lab.settings(**settings), lab.entry, None)


def test_limits_of_a_base_are_its_own(lab):
    found = limits_of(lab, serving_base_digest=lab.entry.digest)
    assert found["base_digest"] == found["served_digest"] == lab.entry.digest
    assert found["twin_of"] is None
    assert limits_of(lab)["served_digest"] == lab.entry.digest


def test_limits_of_a_twin_name_the_base_that_is_tuned(lab):
    original = TwinOf(name="original", digests={"config.json": ZEROS}, double_quant=True)
    twin = lab.entry.model_copy(update={"twin_of": original})
    found = serving_limits(lab.settings(serving_base_digest=twin.digest), twin, "float32")
    assert (found["twin_of"], found["dtype"]) == ("original", "float32")
    assert found["base_digest"] == twin.tuned_digest != found["served_digest"] == twin.digest


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({}, "float32"),
        ({"serving_dtype": "bfloat16"}, "bfloat16"),
        ({"serving_dtype": "auto"}, None),
        ({"serving_device": "cuda"}, None),
        ({"serving_device": "cuda", "serving_dtype": "float32"}, "float32"),
    ],
)
def test_dtype_that_the_settings_ask_for(lab, settings, dtype):
    assert configured_dtype(lab.settings(**settings)) == dtype


def test_dtype_that_the_engine_tells():
    config = SimpleNamespace(model_config=SimpleNamespace(dtype="torch.bfloat16"))
    assert engine_dtype({"app": SimpleNamespace(state=SimpleNamespace(vllm_config=config))}) == "bfloat16"
    assert engine_dtype({"app": SimpleNamespace(state=SimpleNamespace())}) is engine_dtype({}) is None

"""The guard, in front of an application that records which requests reached it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from serving.middleware.guard import (
    KEYED_ROUTES,
    OPEN_ROUTES,
    GuardMiddleware,
    configured_dtype,
    engine_context,
    engine_dtype,
    replica_capabilities,
)
from serving.process import process_settings
from shared.base_models.catalog import TwinOf
from tests.support.asgi_call import call_asgi

KEY, METRICS_KEY = "guard-key", "scrape-key"
ZEROS = "0" * 64


class RecordingVllm:
    """An ASGI application that records the scopes and bodies that reached it."""

    def __init__(self):
        self.scopes = []
        self.bodies = []

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"inside"})
            self.bodies.append((await receive())["body"] if scope["method"] == "POST" else b"")


def call(guard, method, path, *, key=KEY, **scope):
    """The guard's response to one request."""
    return asyncio.run(call_asgi(guard, method, path, key=key, **scope))


@pytest.fixture
def vllm():
    return RecordingVllm()


@pytest.fixture
def guard(vllm, serving_installation, tmp_path):
    return GuardMiddleware(vllm, KEY, lambda: serving_installation.store(tmp_path / "cache"), METRICS_KEY)


@pytest.mark.parametrize(("method", "path"), sorted(OPEN_ROUTES | KEYED_ROUTES))
def test_allowed_routes_pass_with_the_key(guard, method, path):
    assert call(guard, method, path).body == b"inside"


def test_body_reaches_vllm_unchanged(guard, vllm):
    for body in (b"", b'{"model": "a", "messages": []}', b"not JSON", b"\xff\xfe"):
        call(guard, "POST", "/v1/completions", body=body)
        assert vllm.bodies.pop() == body


@pytest.mark.parametrize(("method", "path"), sorted(KEYED_ROUTES))
def test_allowed_routes_require_the_key(guard, vllm, method, path):
    response = call(guard, method, path, key=None)
    assert (response.status, response.error["code"]) == (401, "KEY_MISSING")
    assert response.headers[b"www-authenticate"] == b"Bearer"
    assert vllm.scopes == []


def test_metrics_are_for_the_scraper_alone(guard, vllm):
    assert call(guard, "GET", "/metrics", key=METRICS_KEY).body == b"inside"
    vllm.scopes.clear()
    for key, code in ((None, "KEY_MISSING"), (KEY, "KEY_INVALID"), (METRICS_KEY + "x", "KEY_INVALID")):
        response = call(guard, "GET", "/metrics", key=key)
        assert (response.status, response.error["code"]) == (401, code)
    assert vllm.scopes == []


@pytest.mark.parametrize(("method", "path"), sorted(KEYED_ROUTES))
def test_scraper_reads_nothing_else(guard, vllm, method, path):
    assert call(guard, method, path, key=METRICS_KEY).status == 401
    assert vllm.scopes == []


@pytest.mark.parametrize("key", [None, KEY, ""])
@pytest.mark.parametrize("serving_key", [KEY, ""])
def test_without_a_scrapers_key_there_are_no_metrics(vllm, serving_key, key):
    response = call(GuardMiddleware(vllm, serving_key, metrics_key=""), "GET", "/metrics", key=key)
    assert (response.status, response.error["code"], vllm.scopes) == (404, "ROUTE_NOT_FOUND", [])


def test_health_needs_no_key(guard):
    assert call(guard, "GET", "/health", key=None).status == 200


WRONG_HEADERS = [
    b"",
    b"Bearer",
    b"Bearer ",
    b"Bearer guard-ke",
    b"Bearer guard-key ",
    b"Basic guard-key",
    b"guard-key",
    b"Bearer \xff",
]


@pytest.mark.parametrize("header", WRONG_HEADERS)
def test_wrong_keys_are_refused(guard, vllm, header):
    response = call(guard, "GET", "/v1/models", headers=[(b"authorization", header)])
    assert (response.status, response.error["code"]) == (401, "KEY_INVALID")
    assert vllm.scopes == []


def test_second_authorization_header_is_ignored(guard):
    headers = [(b"authorization", b"Bearer no"), (b"authorization", b"Bearer guard-key")]
    assert call(guard, "GET", "/v1/models", headers=headers).status == 401


def test_scheme_is_case_insensitive(guard):
    assert call(guard, "GET", "/v1/models", headers=[(b"Authorization", b"bearer guard-key")]).status == 200


def test_no_key_is_required_when_none_is_configured(vllm):
    assert call(GuardMiddleware(vllm, ""), "GET", "/v1/models", key=None).status == 200


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
def test_all_other_routes_are_closed(guard, vllm, method, path):
    response = call(guard, method, path)
    assert response.status == 404
    assert response.error["code"] == "ROUTE_NOT_FOUND"
    assert {"message", "type", "param", "code"} <= response.error.keys()
    assert vllm.scopes == []


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
def test_percent_encoded_paths_are_closed(guard, vllm, path, raw):
    response = call(guard, "GET", path, raw_path=raw)
    assert (response.status, response.error["code"]) == (404, "ROUTE_NOT_FOUND")
    assert vllm.scopes == []


def test_mount_point_is_closed(guard):
    assert call(guard, "GET", "/v1/models", root_path="/v1").status == 404


def test_server_without_raw_path_is_supported(guard):
    assert call(guard, "GET", "/v1/models", raw_path=None).status == 200


def test_web_socket_is_refused(guard, vllm):
    response = call(guard, "GET", "/v1/realtime", type="websocket")
    assert response.messages == [{"type": "websocket.close", "code": 1008}]
    assert vllm.scopes == []


def test_lifespan_passes(guard, vllm):
    asyncio.run(guard({"type": "lifespan"}, None, None))
    assert vllm.scopes == [{"type": "lifespan"}]


def test_unknown_scope_is_ignored(guard, vllm):
    assert call_raw(guard, {"type": "gossip"}) == []
    assert vllm.scopes == []


def test_stopping_replica_refuses_incomplete_and_new_requests(guard, vllm):
    server = SimpleNamespace(should_exit=False)
    app = SimpleNamespace(state=SimpleNamespace(server=server))
    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    statuses = []

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
        statuses.append(message.get("status"))

    async def test():
        incomplete = asyncio.create_task(guard(scope("POST", "/v1/completions"), asyncio.Event().wait, send))
        await asyncio.sleep(0.01)
        server.should_exit = True
        async with asyncio.timeout(5):
            await incomplete
            await guard(scope("GET", "/health"), None, send)
            await guard(scope("GET", "/mens/limits"), None, send)

    asyncio.run(test())
    assert [status for status in statuses if status] == [503, 503, 503]
    assert vllm.scopes == []


def call_raw(guard, scope):
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(guard(scope, None, send))
    return sent


@pytest.mark.parametrize("at", ["@", "%40"])
def test_check_of_valid_adapter(guard, serving_installation, at):
    adapter_id = serving_installation.publish("sound", seed=21).adapter_id
    response = call(
        guard,
        "GET",
        f"/mens/adapters/{adapter_id}",
        raw_path=f"/mens/adapters/{adapter_id}".replace("@", at).encode(),
    )
    assert (response.status, json.loads(response.body)["id"]) == (200, adapter_id)


def test_adapter_check_requires_the_key(guard):
    assert call(guard, "GET", f"/mens/adapters/a@{ZEROS}", key=None).status == 401


def test_check_of_refused_adapter_returns_the_reason(guard, serving_installation):
    wide = serving_installation.publish("wide", rank=17).adapter_id
    for adapter_id, status, code in [
        (f"a@{ZEROS}", 404, "ADAPTER_NOT_FOUND"),
        ("a", 400, "NAME_INVALID"),
        (wide, 422, "ADAPTER_RANK_TOO_LARGE"),
    ]:
        response = call(guard, "GET", f"/mens/adapters/{adapter_id}")
        assert (response.status, response.error["code"]) == (status, code)
        assert response.error["remedy"]


def test_internal_fault_of_check_is_a_500(vllm):
    def broken():
        raise OSError("disk on fire")

    response = call(GuardMiddleware(vllm, KEY, broken), "GET", f"/mens/adapters/a@{ZEROS}")
    assert (response.status, response.error["code"]) == (500, "INTERNAL_ERROR")
    assert b"fire" not in response.body


def test_guard_needs_settings(monkeypatch, vllm):
    from serving.process import process_settings
    from shared.errors import InvalidRequest

    process_settings.cache_clear()
    monkeypatch.delenv("MENS_SERVING_BASE", raising=False)
    with pytest.raises(InvalidRequest):
        GuardMiddleware(vllm)


def test_capabilities_require_the_key(guard, vllm, monkeypatch):
    monkeypatch.setenv("MENS_SERVING_BASE", "tiny")
    monkeypatch.setenv("MENS_SERVING_MAX_LORA_RANK", "20")
    process_settings.cache_clear()
    try:
        assert call(guard, "GET", "/mens/limits", key=None).error["code"] == "KEY_MISSING"
        found = json.loads(call(guard, "GET", "/mens/limits").body)
    finally:
        process_settings.cache_clear()
    assert (found["base"], found["max_lora_rank"], found["max_model_len"]) == ("tiny", 32, None)
    assert not vllm.scopes


def capabilities_of(serving_installation, **settings):
    return replica_capabilities(
        serving_installation.settings(serving_max_lora_rank=16, **settings), serving_installation.entry, None
    )


def test_capabilities_of_a_base(serving_installation):
    found = capabilities_of(serving_installation, serving_base_digest=serving_installation.entry.digest)
    assert found.base_digest == found.served_digest == serving_installation.entry.digest
    assert found.twin_of is None
    assert capabilities_of(serving_installation).served_digest == serving_installation.entry.digest


def test_capabilities_have_the_engines_context(serving_installation):
    settings = serving_installation.settings(serving_max_lora_rank=16, serving_max_model_len=512)
    assert replica_capabilities(settings, serving_installation.entry, None, 300).context == 300
    assert replica_capabilities(settings, serving_installation.entry, None).context == 512
    engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=1024, dtype="torch.bfloat16"))
    scope = {"app": SimpleNamespace(state=SimpleNamespace(vllm_config=engine))}
    assert (engine_context(scope), engine_dtype(scope)) == (1024, "bfloat16")
    assert (engine_context({}), engine_dtype({})) == (None, None)


def test_capabilities_of_a_twin_name_its_original(serving_installation):
    original = TwinOf(name="original", digests={"config.json": ZEROS}, double_quant=True)
    twin = serving_installation.entry.model_copy(update={"twin_of": original})
    found = replica_capabilities(
        serving_installation.settings(serving_max_lora_rank=16, serving_base_digest=twin.digest), twin, "float32"
    )
    assert (found.twin_of, found.double_quant, found.dtype) == ("original", original.double_quant, "float32")
    assert found.weights == "twin"
    assert found.base_digest == twin.tuned_digest != found.served_digest == twin.digest


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
def test_configured_dtype(serving_installation, settings, dtype):
    assert configured_dtype(serving_installation.settings(**settings)) == dtype


def test_engine_dtype_is_read_from_vllms_config():
    config = SimpleNamespace(model_config=SimpleNamespace(dtype="torch.bfloat16"))
    assert engine_dtype({"app": SimpleNamespace(state=SimpleNamespace(vllm_config=config))}) == "bfloat16"
    assert engine_dtype({"app": SimpleNamespace(state=SimpleNamespace())}) is engine_dtype({}) is None

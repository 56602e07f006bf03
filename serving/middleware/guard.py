"""The guard: an ASGI middleware in front of all routes of vLLM. It checks an allow-list of routes and the serving key.

vLLM requires its key only below ``/v1``, and the variable that makes it call our resolver also opens routes that load
any path on the machine. So the guard lets requests through only to an exact list of routes. It requires the serving key
on all of them except ``/health``, which needs no key, and ``/metrics``, which needs the scraper's key. The guard also
has its own routes. The publisher uses them to get the reason why an adapter is refused. The control plane uses them to
get this replica's capabilities before a job is queued, and to unload deleted adapters (`unloading.py`):

    GET    /mens/adapters/<adapter id>   200 {"id", "ok", …}   or   4xx {"error": {"code", "message", "remedy", …}}
    DELETE /mens/adapters/<adapter id>   200 {"id", "state": "unloaded"}   or   202 {"state": "draining", "requests": 2}
    GET    /mens/limits                  200 {"base", "base_digest", "max_lora_rank", "served_digest", …}

The publisher also uses ``/tokenize``, to compare the replica's token ids with the trainer's. ``/v1/responses`` is open,
because the gateway forwards only requests that store nothing. The routes below it, which read and cancel stored
responses, are closed.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from pydantic import BaseModel

from serving.adapter_store import AdapterStore
from serving.metrics import GUARD_REFUSALS
from serving.middleware.access_log import run_logged
from serving.middleware.asgi_types import App, Receive, Scope, Send
from serving.middleware.cache_limit import CacheLimit
from serving.middleware.graceful_shutdown import GracefulShutdown
from serving.middleware.in_flight import InFlightRequests, named_model, read_body
from serving.middleware.listening import ListeningCheck
from serving.middleware.self_test import SelfTest
from serving.middleware.unloading import Unloader
from serving.middleware.vllm_engine import Engine
from serving.process import process_settings, process_store
from serving.settings import ServingSettings
from shared.base_models.catalog import BaseModelEntry
from shared.errors import (
    ArtifactInvalid,
    Code,
    Conflict,
    InvalidRequest,
    MensError,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from shared.replicas import AdapterCheck, ReplicaCapabilities, UnloadProgress

OPEN_ROUTES = frozenset({("GET", "/health")})
KEYED_ROUTES = frozenset(
    {
        ("GET", "/version"),
        ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/embeddings"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
    }
)
METRICS_ROUTE = ("GET", "/metrics")
"""Route of vLLM's metrics and ours. The metrics cover all tenants, so the route has its own key, which callers and
other tiers do not have.
"""
ADAPTER_ROUTE = "/mens/adapters/"
CAPABILITIES_ROUTE = ("GET", "/mens/limits")
STATUS: dict[type[MensError], tuple[int, str]] = {
    NotFound: (404, "not_found_error"),
    Conflict: (409, "conflict_error"),
    InvalidRequest: (400, "invalid_request_error"),
    Unauthenticated: (401, "authentication_error"),
    ArtifactInvalid: (422, "artifact_invalid_error"),
    Unavailable: (503, "unavailable_error"),
}
POLICY_VIOLATION = 1008
INSTANCE = uuid.uuid4().hex
"""Id of this process; each start of a replica gets a new one."""
DRAIN_SECONDS = 60.0
"""Time that requests in flight get if the unload request does not specify one."""

log = logging.getLogger("vllm.mens.guard")


class GuardMiddleware:
    """ASGI middleware. vLLM creates it with the app as the only argument; the guard then reads its settings from the
    environment.

    Args:
        app: vLLM's application.
        key: the bearer token that requests must carry; empty: no token is required; None: both keys are taken from the
            settings.
        metrics_key: the token that a scraper must send; empty: the route is closed.
        open_store: returns the adapter store; called at the first adapter check.
        cache_bytes: largest total size of the verified adapters; None: no limit. If ``key`` is None, the limit of the
            settings is used instead.

    Raises:
        InvalidRequest: the settings are invalid. The server then does not start, so it never runs without a guard.
    """

    def __init__(
        self,
        app: App,
        key: str | None = None,
        open_store: Callable[[], AdapterStore] = process_store,
        metrics_key: str = "",
        cache_bytes: int | None = None,
    ) -> None:
        self._app = app
        if key is None:
            settings = process_settings()
            key, metrics_key = settings.serving_key.get_secret_value(), settings.metrics_key.get_secret_value()
            cache_bytes = settings.serving_cache_bytes
        self._key, self._metrics_key = key.encode(), metrics_key.encode()
        self._open_store = open_store
        self._in_flight = InFlightRequests()
        self._unloader = Unloader(self._in_flight, open_store)
        self._cache_limit = CacheLimit(self._unloader, open_store, cache_bytes)
        self._shutdown = GracefulShutdown()
        self._self_test = SelfTest(app, self._key)
        self._listening = ListeningCheck()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection: forward lifespan events, check HTTP requests, refuse web sockets."""
        match scope["type"]:
            case "lifespan":
                # vLLM has installed its signal handlers by now, so ours replaces one of them.
                if (server := server_of(scope)) is not None:
                    settings = process_settings()
                    self._shutdown.handle_sigterm(settings.drain_seconds)
                    # Do not wait for requests in flight: a broken replica cannot complete them.
                    broken = partial(self._shutdown.begin, 0)
                    self._self_test.start(
                        settings.serving_base, settings.serving_self_test_seconds, scope["app"], broken
                    )
                    self._listening.start(server, broken)
                await self._app(scope, receive, send)
                self._self_test.stop()
                self._listening.stop()
            case "http":
                await run_logged(self._http, scope, receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": POLICY_VIOLATION})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            adapter_id = self._admit(scope)
        except MensError as error:
            await _refuse(send, error)
            return
        try:
            await self._shutdown.run(server_of(scope), send, partial(self._serve, scope, receive, adapter_id))
        except Unavailable as error:
            await _refuse(send, error)

    def _admit(self, scope: Scope) -> str | None:
        """Admit a request or raise an error. Returns the adapter id for our adapter routes, None for all others."""
        route, adapter_id = _route(scope), _adapter_id(scope)
        our_routes = (
            OPEN_ROUTES | KEYED_ROUTES | {CAPABILITIES_ROUTE} | ({METRICS_ROUTE} if self._metrics_key else set())
        )
        if adapter_id is None and (route not in our_routes or not _is_plain(scope)):
            raise NotFound(Code.ROUTE_NOT_FOUND, "This route does not exist.", remedy="Use the Mens API.")
        key = self._metrics_key if route == METRICS_ROUTE else self._key
        if route in OPEN_ROUTES or not key:
            return adapter_id
        authorization = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), None)
        if authorization is None:
            raise Unauthenticated(Code.KEY_MISSING, "No key.", remedy="Send `Authorization: Bearer <serving key>`.")
        scheme, _, token = authorization.partition(b" ")
        # Compare in constant time, so that the response time does not reveal how many characters of a guess are right.
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token, key):
            raise Unauthenticated(Code.KEY_INVALID, "The key is not known.", remedy="Use this replica's serving key.")
        return adapter_id

    async def _serve(self, scope: Scope, receive: Receive, adapter_id: str | None, send: Send) -> None:
        """Respond to an admitted request with one of our routes, or forward it to vLLM."""
        response: BaseModel | None = None
        model = ""
        try:
            if _route(scope) in OPEN_ROUTES:
                self._self_test.raise_if_failed()
            elif adapter_id is not None:
                response = await self._adapter_route(scope, adapter_id)
            elif _route(scope) == CAPABILITIES_ROUTE:
                store, settings = await asyncio.to_thread(self._open_store), process_settings()
                dtype = engine_dtype(scope) or configured_dtype(settings)
                response = replica_capabilities(settings, store.base, dtype, engine_context(scope))
            elif scope["method"] == "POST":
                whole = await read_body(receive)
                if whole is None:
                    return
                model, receive = named_model(whole[0]) or "", whole[1]
                await self._unloader.admit(model)
        except MensError as error:
            await _refuse(send, error)
            return
        if response is not None:
            draining = isinstance(response, UnloadProgress) and response.state == "draining"
            await _send_json(send, 202 if draining else 200, response.model_dump())
            if adapter_id is not None:
                await self._limit_cache(scope, adapter_id)
            return
        self._shutdown.include_in_drain()
        with self._in_flight.track(model):
            await self._app(scope, receive, send)
        await self._limit_cache(scope, model)

    async def _limit_cache(self, scope: Scope, model: str) -> None:
        """Apply the cache's limit after a response, because the request may have added an adapter. An error here is
        only logged.
        """
        try:
            await self._cache_limit.apply(model, lambda: Engine(scope["app"]))
        except Exception:
            log.exception("Adapters could not be removed from the cache.")

    async def _adapter_route(self, scope: Scope, adapter_id: str) -> AdapterCheck | UnloadProgress:
        """Check an adapter (GET) or unload it (DELETE). After an unexpected error, the response does not blame the
        adapter.
        """
        try:
            if scope["method"] == "DELETE":
                return await self._unloader.unload(adapter_id, Engine(scope["app"]), _drain_seconds(scope))
            store = await asyncio.to_thread(self._open_store)
            manifest = (await asyncio.to_thread(store.fetch, adapter_id)).manifest
            return AdapterCheck(id=adapter_id, base=manifest.base_model, rank=manifest.rank, step=manifest.step)
        except MensError:
            raise
        except Exception as error:
            log.exception("A management request for the adapter %s failed.", adapter_id)
            raise MensError(Code.INTERNAL_ERROR, "Read the replica's log: the check failed.") from error


def replica_capabilities(
    settings: ServingSettings, base: BaseModelEntry, dtype: str | None, context: int | None = None
) -> ReplicaCapabilities:
    """Return this replica's base and capabilities, for the control plane's check at submission and for the publisher.

    Args:
        settings: settings of the replica.
        base: the served base's entry in the catalogue.
        dtype: dtype in which the engine computes, e.g. ``float32``; None if unknown.
        context: tokens of the longest sequence that the engine accepts; None if unknown.
    """
    # The store can be opened only if the rank is set.
    assert settings.serving_max_lora_rank is not None
    return ReplicaCapabilities(
        base=settings.serving_base,
        base_digest=base.tuned_digest if base.twin_of else settings.serving_base_digest,
        served_digest=settings.serving_base_digest or base.digest,
        twin_of=base.twin_of.name if base.twin_of else None,
        double_quant=base.twin_of.double_quant if base.twin_of else None,
        dtype=dtype,
        max_lora_rank=settings.serving_max_lora_rank,
        max_model_len=settings.serving_max_model_len,
        context=context or settings.serving_max_model_len,
        adapts_head=settings.adapts_head,
        instance=INSTANCE,
    )


def server_of(scope: Scope) -> Any:
    """Return the uvicorn server in which vLLM runs; None in tests without one."""
    return getattr(getattr(scope.get("app"), "state", None), "server", None)


def engine_dtype(scope: Scope) -> str | None:
    """Return the dtype of the engine behind the guard, from vLLM's config; None in tests without an engine."""
    dtype = getattr(_engine_model_config(scope), "dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")


def engine_context(scope: Scope) -> int | None:
    """Return the tokens of the longest sequence that the engine accepts, from vLLM's config; None without an engine."""
    return getattr(_engine_model_config(scope), "max_model_len", None)


def _engine_model_config(scope: Scope) -> Any:
    config = getattr(getattr(scope.get("app"), "state", None), "vllm_config", None)
    return getattr(config, "model_config", None)


def configured_dtype(settings: ServingSettings) -> str | None:
    """Return the dtype that the settings require; None if the engine chooses it."""
    dtype = settings.serving_dtype or ("float32" if settings.serving_device == "cpu" else "auto")
    return None if dtype == "auto" else dtype


def _route(scope: Scope) -> tuple[str, str]:
    return scope["method"], scope["path"]


def _is_plain(scope: Scope) -> bool:
    """Return whether the path is plain: not percent-encoded, and not below a mount point."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or path.encode()
    return raw == path.encode() and not scope.get("root_path")


def _adapter_id(scope: Scope) -> str | None:
    """Return the adapter id, which is the last segment of an adapter route's path. Some clients percent-encode its
    ``@``.
    """
    path: str = scope["path"]
    candidate = path.removeprefix(ADAPTER_ROUTE)
    if (
        scope["method"] not in ("GET", "DELETE")
        or not path.startswith(ADAPTER_ROUTE)
        or not candidate
        or "/" in candidate
    ):
        return None
    raw: bytes = scope.get("raw_path") or path.encode()
    plain = _is_plain(scope) or raw == path.replace("@", "%40").encode()
    return candidate if plain else None


def _drain_seconds(scope: Scope) -> float:
    values = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("drain_seconds", [])
    if not values:
        return DRAIN_SECONDS
    try:
        return float(values[-1])
    except ValueError:
        raise InvalidRequest(Code.REQUEST_INVALID, "drain_seconds is not a number.", param="drain_seconds") from None


async def _refuse(send: Send, error: MensError) -> None:
    GUARD_REFUSALS.labels(str(error.code)).inc()
    status, kind = next((value for type_, value in STATUS.items() if isinstance(error, type_)), (500, "server_error"))
    await _send_json(send, status, {"error": {"type": kind, **error.as_dict()}})


async def _send_json(send: Send, status: int, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})

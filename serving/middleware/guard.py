"""The wall: an ASGI middleware in front of every route of vLLM.

vLLM asks for its key only below ``/v1``, and the flag that makes it ask our resolver also opens routes that load any
path on the machine. So the wall lets through an exact list and nothing else, and asks for the key everywhere but on
``/health``. It also answers routes of ours: the publisher learns why an adapter is refused, the control plane learns what
this replica can serve before it lets anybody train it, and has adapters unloaded that were deleted (`unloading.py`):

    GET    /mens/adapters/<adapter id>   200 {"id", "ok", …}   or   4xx {"error": {"code", "message", "remedy", …}}
    DELETE /mens/adapters/<adapter id>   200 {"id", "state": "unloaded"}   or   202 {"state": "draining", "requests": 2}
    GET    /mens/limits                  200 {"base", "base_digest", "max_lora_rank", "max_model_len", "served_digest", …}

``/tokenize`` is for the publisher too, which compares the replica's token ids with the trainer's. ``/v1/responses`` is let
through because the front door lets only requests pass to it that leave nothing behind; the routes below it, which read
and cancel what is stored, are closed.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from serving.adapters import AdapterStore
from serving.engine import Engine
from serving.runtime import process_settings, process_store
from serving.settings import ServingSettings
from serving.stopping import Stopping
from serving.traffic import Traffic, named_model, read_body
from serving.unloading import Unloader
from shared.catalog import BaseModelEntry
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

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_ROUTES = frozenset({("GET", "/health")})
KEYED_ROUTES = frozenset(
    {
        ("GET", "/metrics"),
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
ADAPTER_ROUTE = "/mens/adapters/"
LIMITS_ROUTE = ("GET", "/mens/limits")
STATUS: dict[type[MensError], tuple[int, str]] = {
    NotFound: (404, "not_found_error"),
    Conflict: (409, "conflict_error"),
    InvalidRequest: (400, "invalid_request_error"),
    Unauthenticated: (401, "authentication_error"),
    ArtifactInvalid: (422, "artifact_invalid_error"),
    Unavailable: (503, "unavailable_error"),
}
POLICY_VIOLATION = 1008
DRAIN_SECONDS = 60.0
"""How long requests under way may go on when whoever unloads does not say."""

log = logging.getLogger("vllm.mens.wall")


class Wall:
    """ASGI middleware; vLLM builds it with the app alone, and then it reads its settings from the environment.

    Args:
        app: what is behind the wall.
        key: what callers must send as bearer token; empty: nobody is asked. None: the setting.
        open_store: gives the adapter store; called at the first adapter check.

    Raises:
        InvalidRequest: the settings are wrong. The server then does not start, rather than start without a wall.
    """

    def __init__(
        self, app: App, key: str | None = None, open_store: Callable[[], AdapterStore] = process_store
    ) -> None:
        self._app = app
        self._key = (process_settings().serving_key.get_secret_value() if key is None else key).encode()
        self._open_store = open_store
        self._traffic = Traffic()
        self._unloader = Unloader(self._traffic, open_store)
        self._stopping = Stopping()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection: the server's own start and stop pass, HTTP is judged, web sockets are refused."""
        match scope["type"]:
            case "lifespan":
                if server_of(scope) is not None:  # vLLM has set its signal handlers by now
                    self._stopping.take_over(process_settings().drain_seconds)
                await self._app(scope, receive, send)
            case "http":
                await self._http(scope, receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": POLICY_VIOLATION})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            adapter_id = self._admit(scope)
        except MensError as error:
            await _refuse(send, error)
            return
        work = partial(self._serve, scope, receive, adapter_id=adapter_id)
        try:
            await self._stopping.pass_unless(server_of(scope), send, work)
        except Unavailable as error:
            await _refuse(send, error)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, adapter_id: str | None) -> None:
        try:
            answer = await self._own_answer(scope, adapter_id)
            passing = await self._read(scope, receive) if answer is None else None
        except MensError as error:
            await _refuse(send, error)
            return
        if answer is not None:
            await _answer(send, 202 if answer.get("state") == "draining" else 200, answer)
        elif passing is not None:
            model, receive = passing
            self._stopping.wait_for_this()
            with self._traffic.request(model):
                await self._app(scope, receive, send)

    async def _own_answer(self, scope: Scope, adapter_id: str | None) -> dict[str, Any] | None:
        """What a route of ours answers; None for one of vLLM's."""
        if adapter_id is not None:
            doing = self._check(adapter_id) if scope["method"] == "GET" else self._unload(scope, adapter_id)
            return await _whole(doing, adapter_id)
        return await asyncio.to_thread(self._limits, scope) if _route(scope) == LIMITS_ROUTE else None

    async def _read(self, scope: Scope, receive: Receive) -> tuple[str, Receive] | None:
        """The model that a request for vLLM names, and what vLLM reads the request from; None when its caller has gone.

        Raises:
            NotFound: ``ADAPTER_NOT_FOUND``: the model is being unloaded.
        """
        if scope["method"] != "POST":
            return "", receive
        whole = await read_body(receive)
        if whole is None:
            return None
        model = named_model(whole[0]) or ""
        await self._unloader.admit(model)
        return model, whole[1]

    def _admit(self, scope: Scope) -> str | None:
        """Let a request pass, or raise. Returns the adapter id of our own routes, None for others."""
        route = _route(scope)
        adapter_id = _adapter_id(scope)
        if adapter_id is None and (not _is_plain(scope) or route not in OPEN_ROUTES | KEYED_ROUTES | {LIMITS_ROUTE}):
            raise NotFound(Code.ROUTE_NOT_FOUND, "There is no such route.", remedy="Ask the front door of Mens.")
        if route not in OPEN_ROUTES:
            self._authenticate(scope["headers"])
        return adapter_id

    def _authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if not self._key:
            return
        given = next((value for name, value in headers if name.lower() == b"authorization"), None)
        if given is None:
            raise Unauthenticated(Code.KEY_MISSING, "No key.", remedy="Send `Authorization: Bearer <serving key>`.")
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token, self._key):
            raise Unauthenticated(Code.KEY_INVALID, "The key is not known.", remedy="Use this replica's serving key.")

    def _limits(self, scope: Scope) -> dict[str, Any]:
        settings = process_settings()
        return serving_limits(settings, self._open_store().base, engine_dtype(scope) or configured_dtype(settings))

    async def _check(self, adapter_id: str) -> dict[str, Any]:
        store = await asyncio.to_thread(self._open_store)
        adapter = await asyncio.to_thread(store.fetch, adapter_id)
        return {
            "id": adapter.adapter_id,
            "ok": True,
            "base": adapter.manifest.base_model,
            "rank": adapter.manifest.rank,
            "step": adapter.manifest.step,
        }

    async def _unload(self, scope: Scope, adapter_id: str) -> dict[str, Any]:
        return await self._unloader.unload(adapter_id, Engine(scope["app"]), _drain_seconds(scope))


async def _whole(doing: Awaitable[dict[str, Any]], adapter_id: str) -> dict[str, Any]:
    """An answer about an adapter; a fault of ours is no verdict on it."""
    try:
        return await doing
    except MensError:
        raise
    except Exception as error:
        log.exception("What was asked about %s failed.", adapter_id)
        raise MensError(Code.INTERNAL_ERROR, "The check itself failed; the replica's log says why.") from error


def serving_limits(settings: ServingSettings, base: BaseModelEntry, dtype: str | None) -> dict[str, Any]:
    """What this replica serves and can serve: for the control plane's check at submission, and for the publisher.

    Args:
        settings: the replica's.
        base: the served base's entry in the catalogue.
        dtype: in which the engine computes, e.g. ``float32``; None when nothing is known.

    Returns:
        ``base_digest`` is that of the base whose adapters belong here, ``served_digest`` that of the weights; they
        differ on a dequantised twin, whose original's name is ``twin_of``.
    """
    return {
        "base": settings.serving_base,
        "base_digest": base.tuned_digest if base.twin_of else settings.serving_base_digest,
        "served_digest": settings.serving_base_digest or base.digest,
        "twin_of": base.twin_of.name if base.twin_of else None,
        "dtype": dtype,
        "max_lora_rank": settings.serving_max_lora_rank,
        "max_model_len": settings.serving_max_model_len,
    }


def server_of(scope: Scope) -> Any:
    """The uvicorn server in which vLLM runs; None when there is none, as in a test."""
    return getattr(getattr(scope.get("app"), "state", None), "server", None)


def engine_dtype(scope: Scope) -> str | None:
    """Dtype of the engine behind this wall, as vLLM itself says it; None when there is none, as in a test."""
    config = getattr(getattr(scope.get("app"), "state", None), "vllm_config", None)
    dtype = getattr(getattr(config, "model_config", None), "dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")


def configured_dtype(settings: ServingSettings) -> str | None:
    """Dtype that the settings ask for; None when the engine is left to choose."""
    dtype = settings.serving_dtype or ("float32" if settings.serving_device == "cpu" else "auto")
    return None if dtype == "auto" else dtype


def _route(scope: Scope) -> tuple[str, str]:
    return scope["method"], scope["path"]


def _is_plain(scope: Scope) -> bool:
    """Whether the path is spelled as it is meant: nothing percent-encoded, no mount point in front."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or path.encode()
    return raw == path.encode() and not scope.get("root_path")


def _adapter_id(scope: Scope) -> str | None:
    """What follows our route, when it is one path segment; some clients must send its ``@`` percent-encoded."""
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
    given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("drain_seconds", [])
    if not given:
        return DRAIN_SECONDS
    try:
        return float(given[-1])
    except ValueError:
        raise InvalidRequest(Code.REQUEST_INVALID, "drain_seconds is no number.", param="drain_seconds") from None


async def _refuse(send: Send, error: MensError) -> None:
    status, kind = next((value for type_, value in STATUS.items() if isinstance(error, type_)), (500, "server_error"))
    await _answer(send, status, {"error": {"type": kind, **error.as_dict()}})


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})

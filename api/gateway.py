"""The chat proxy: resolves a model name to what a replica serves, and passes bytes both ways without holding a stream.

An alias may be split between adapters: who asks again gets the same one. Which adapter answered, ``X-Mens-Adapter`` says.
A client that goes away cancels its request at the replica. `api/upstream.py` asks the replicas.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import httpx
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from api.services import Services
from api.upstream import ask
from shared.aliases import Alias
from shared.errors import Code, InvalidRequest, NotFound, TooLarge, Unavailable
from shared.routing import sticky_point

CLIENT_GONE = 499
"""Status in the log for a caller that left; nobody receives it."""
PASSED_HEADERS = ("content-type", "x-request-id", "retry-after")
SESSION_HEADER = "x-session-id"
ADAPTER_HEADER = "x-mens-adapter"

Copy = Callable[[], Awaitable[None]]


async def proxy(services: Services, request: Request, path: str) -> Response:
    """Answer a chat or completion request from a serving replica.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``. TooLarge: ``BODY_TOO_LARGE``. NotFound: ``MODEL_NOT_FOUND``.
        Unavailable: ``SERVING_UNAVAILABLE``.
    """
    try:
        body = await read_body(request, services.settings.max_body_bytes)
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    session = request.headers.get(SESSION_HEADER, "")
    chosen = await run_in_threadpool(choose_model, services, body, session)
    upstream = await _unless_gone(request, ask(services, path, body, chosen.served))
    if upstream is None:
        return Response(status_code=CLIENT_GONE)
    if upstream.status_code == 404:
        await upstream.aclose()
        raise Unavailable(
            Code.SERVING_REFUSED,
            f"The serving tier refuses to load {body['model']!r} ({chosen.served}).",
            remedy="Its files may be damaged; the serving replica's log has the reason's code.",
            retryable=False,
        )
    return _streamed(upstream, chosen, _shadow(services, path, body, chosen) if upstream.is_success else None)


async def read_body(request: Request, limit: int) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        TooLarge: ``BODY_TOO_LARGE``. InvalidRequest: ``REQUEST_INVALID``: not a JSON object.
    """
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > limit:
            raise TooLarge(Code.BODY_TOO_LARGE, f"The request body is larger than {limit} bytes.")
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise InvalidRequest(Code.REQUEST_INVALID, f"The request body is not JSON: {error}.") from None
    if not isinstance(body, dict):
        raise InvalidRequest(Code.REQUEST_INVALID, "The request body is not a JSON object.")
    return body


@dataclass(frozen=True, slots=True)
class Choice:
    """What answers a request. ``adapter`` is None for a base model; a shadow comes with the alias that names it."""

    served: str
    adapter: str | None = None
    alias: Alias | None = None


def choose_model(services: Services, body: dict[str, Any], session: str = "") -> Choice:
    """What the serving tier is asked for: a base by its name, an adapter or alias by an adapter's immutable id.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``. InvalidRequest: ``REQUEST_INVALID``: no name.
    """
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest(Code.REQUEST_INVALID, "`model` must be a name.", param="model")
    if any(base.name == model for base in services.catalog().bases):
        return Choice(model)
    if not model.isprintable():  # no name of ours, and nothing to trouble a database with
        raise _unknown_model(model)
    if alias := services.aliases.find(model):
        adapter_id = alias.choose(sticky_point(model, sticky_key(body, session)))
        return Choice(adapter_id, adapter_id, alias)
    try:
        adapter = services.registry.adapter(model)
    except NotFound:
        raise _unknown_model(model) from None
    if not adapter.published:
        raise _unknown_model(model)
    return Choice(adapter.id, adapter.id)


def sticky_key(body: dict[str, Any], session: str = "") -> str:
    """What stays the same while one person or one conversation asks on: the caller's word for it, else how it began.

    A conversation begins with everything up to its first user message: a system prompt alone is shared by many.
    """
    for name in ("safety_identifier", "user"):
        if isinstance(body.get(name), str) and body[name]:
            return json.dumps(["user", body[name]])
    if session:
        return json.dumps(["session", session])
    messages = body.get("messages")
    if not isinstance(messages, list):
        return json.dumps(["prompt", body.get("prompt")])
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    beginning = messages[: roles.index("user") + 1] if "user" in roles else messages[:1]
    return json.dumps(["messages", beginning], sort_keys=True)


async def _unless_gone(request: Request, answer: Any) -> httpx.Response | None:
    """Await the replica's answer, or give it up when the client disconnects first."""
    result: httpx.Response | None = None

    async def wait_for_answer() -> None:
        nonlocal result
        result = await answer
        group.cancel_scope.cancel()

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_disconnect)
            group.start_soon(wait_for_answer)
    except ExceptionGroup as errors:  # the group wraps what was raised inside
        raise errors.exceptions[0] from None
    return result


def _shadow(services: Services, path: str, body: dict[str, Any], chosen: Choice) -> Copy | None:
    """Sends the copy for the alias's shadow; None when this request is not of its share."""
    shadow = chosen.alias.shadow if chosen.alias else None
    if chosen.alias is None or shadow is None or random.random() >= shadow.share:
        return None
    copy = partial(ask, services, path, body, shadow.adapter)
    return partial(services.shadows.offer, chosen.alias.name, shadow.adapter, copy)


def _streamed(upstream: httpx.Response, chosen: Choice, copy: Copy | None) -> Response:
    headers = {name: upstream.headers[name] for name in PASSED_HEADERS if name in upstream.headers}
    if chosen.adapter:
        headers[ADAPTER_HEADER] = chosen.adapter
    return PassedOn(upstream, headers, copy)


class PassedOn(StreamingResponse):
    """The replica's bytes as they come, then the shadow's copy: a caller who leaves early leaves none.

    The replica's answer is closed however this ends, even before it begins; closing it early stops the engine.
    """

    def __init__(self, upstream: httpx.Response, headers: dict[str, str], copy: Copy | None) -> None:
        super().__init__(self._body(copy), upstream.status_code, headers)
        self._upstream = upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._upstream.aclose()

    async def _body(self, copy: Copy | None) -> AsyncIterator[bytes]:
        async for chunk in self._upstream.aiter_raw():
            yield chunk
        if copy is not None:
            await copy()


def _unknown_model(model: str) -> NotFound:
    return NotFound(
        Code.MODEL_NOT_FOUND,
        f"There is no model {model!r}.",
        remedy="List what there is with GET /v1/models.",
        param="model",
    )

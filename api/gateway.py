"""The chat proxy: resolves a model name to what a replica serves, and passes bytes both ways without holding a stream.

An alias may be split between adapters: who asks again gets the same one. Which adapter answered, ``X-Mens-Adapter`` says.
A client that goes away cancels its request at the replica. `api/upstream.py` asks the replicas.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from api.answer import Answer, PassedOn
from api.limits import Admission
from api.prefix_salt import salted
from api.presence import Presence
from api.rejections import rejection
from api.services import Services
from api.upstream import ask
from shared.errors import Code, InvalidRequest, NotFound, TooLarge
from shared.routing import Routing, sticky_point

if TYPE_CHECKING:
    from api.authentication import Caller

CLIENT_GONE = 499
"""Status in the log for a caller that left; nobody receives it."""
SESSION_HEADER = "x-session-id"

Prepare = Callable[[dict[str, Any]], dict[str, Any]]


async def proxy(
    services: Services, caller: Caller, request: Request, path: str, *, prepare: Prepare | None = None
) -> Response:
    """Answer a request to a model from a serving replica, in the replica's own shape.

    Args:
        path: of the replica.
        prepare: what becomes of the request's body first.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``. TooLarge: ``BODY_TOO_LARGE``. And what ``prepare`` and :func:`open_answer` raise.
    """
    try:
        body = await read_body(request, services.settings.max_body_bytes)
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    answer = await open_answer(services, caller, request, path, prepare(body) if prepare else body)
    return Response(status_code=CLIENT_GONE) if answer is None else PassedOn(answer)


async def open_answer(
    services: Services, caller: Caller, request: Request, path: str, body: dict[str, Any]
) -> Answer | None:
    """A serving replica's answer, begun, its key's limits held and its tokens counted; None: the client has gone.

    Whoever gets it closes it: :class:`PassedOn` does, and can be given what the answer is turned into.

    Args:
        request: its body is read already; its going away is watched, and its headers may choose the adapter.
        path: of the replica.
        body: what the replica is asked, but for the model, which may be an alias.

    Raises:
        TooMany: ``RATE_LIMITED``, ``CONCURRENCY_LIMITED``. InvalidRequest: ``REQUEST_INVALID``.
        NotFound: ``MODEL_NOT_FOUND``. Unavailable: ``SERVING_UNAVAILABLE``. And what :func:`rejection` gives.
    """
    admission = await services.limiter.admit(caller.key)
    presence, answer = Presence(request.receive), None
    try:
        answer = await _begin(services, caller, request, path, body, admission, presence)
    finally:
        if answer is None:
            presence.forget()
            await admission.leave()
    return answer


async def read_body(request: Request, limit: int) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        TooLarge: ``BODY_TOO_LARGE``. InvalidRequest: ``REQUEST_INVALID``: not a JSON object. ClientDisconnect.
    """
    raw = bytearray()
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        raw += message.get("body", b"")
        more = message.get("more_body", False)
        if len(raw) > limit:
            raise TooLarge(Code.BODY_TOO_LARGE, f"The request body is larger than {limit} bytes.")
    try:
        body = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(Code.REQUEST_INVALID, f"The request body is not JSON: {error}.") from None
    if not isinstance(body, dict):
        raise InvalidRequest(Code.REQUEST_INVALID, "The request body is not a JSON object.")
    return body


@dataclass(frozen=True, slots=True)
class Choice:
    """What answers a request. A base model has neither ``adapter`` nor ``routing``."""

    served: str
    adapter: str | None = None
    routing: Routing | None = None


async def choose_model(
    services: Services, tenant: str, body: dict[str, Any], headers: Mapping[str, str] = MappingProxyType({})
) -> Choice:
    """What the serving tier is asked for: a base by its name, an adapter or alias by an adapter's immutable id.

    Args:
        tenant: whose names count, before those of ``shared``.
        headers: the request's, which may name a session.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``. InvalidRequest: ``REQUEST_INVALID``: no name.
    """
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest(Code.REQUEST_INVALID, "`model` must be a name.", param="model")
    if services.directory.is_base(model):
        return Choice(model)
    if not model.isprintable():  # no name of ours, and nothing to trouble a database with
        raise _unknown_model(model)
    routing = await services.directory.find(tenant, model)
    if routing is None:
        if any(base.name == model for base in services.catalog().bases):  # a new one
            return Choice(model)
        raise _unknown_model(model)
    if len(routing.targets) == 1:
        return Choice(routing.main, routing.main, routing)
    adapter_id = routing.choose(sticky_point(model, sticky_key(body, headers.get(SESSION_HEADER, ""))))
    return Choice(adapter_id, adapter_id, routing)


def sticky_key(body: dict[str, Any], session: str = "") -> str:
    """What stays the same while one person or one conversation asks on: the caller's word for it, else how it began.

    A conversation begins with everything up to its first user message: a system prompt alone is shared by many.
    """
    for name in ("safety_identifier", "user"):
        if isinstance(body.get(name), str) and body[name]:
            return json.dumps(["user", body[name]])
    if session:
        return json.dumps(["session", session])
    messages = body.get("messages", body.get("input"))  # the Responses API's chats are its input
    if not isinstance(messages, list):
        return json.dumps(["prompt", body.get("prompt", messages)])
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    beginning = messages[: roles.index("user") + 1] if "user" in roles else messages[:1]
    return json.dumps(["messages", beginning], sort_keys=True)


async def _begin(
    services: Services,
    caller: Caller,
    request: Request,
    path: str,
    body: dict[str, Any],
    admission: Admission,
    presence: Presence,
) -> Answer | None:
    chosen = await choose_model(services, caller.tenant, body, request.headers)
    asked = salted(body, services.settings.serving_key.get_secret_value(), caller.tenant)
    asked, tap = services.meter.of(caller.key, chosen.served, path, asked)
    begun = await presence.unless_gone(ask(services, path, asked, chosen.served))
    if begun is None:
        return None
    if begun.refuses:
        raise await rejection(begun, body, chosen.served)
    return Answer(begun, tap, admission, presence, adapter=chosen.adapter, then=_shadow(services, path, asked, chosen))


def _shadow(
    services: Services, path: str, body: dict[str, Any], chosen: Choice
) -> Callable[[], Awaitable[None]] | None:
    """Sends the copy for the alias's shadow; None when this request is not of its share."""
    shadow = chosen.routing.shadow if chosen.routing else None
    if shadow is None or random.random() >= shadow.share:
        return None
    copy = partial(ask, services, path, body, shadow.adapter)
    return partial(services.shadows.offer, body["model"], shadow.adapter, copy)


def _unknown_model(model: str) -> NotFound:
    return NotFound(
        Code.MODEL_NOT_FOUND,
        f"There is no model {model!r}.",
        remedy="List what there is with GET /v1/models.",
        param="model",
    )

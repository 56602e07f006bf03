"""The gateway: the path of a model request from its body to the start of its response. Start reading here.

A model's name resolves to a model that replicas serve. An alias may be split between adapters; the same user, session
or conversation gets the same adapter every time. The response header ``X-Mens-Adapter`` names the adapter; if the
request uses a foreign name, the response's ``model`` is that name. A caller who disconnects cancels its request at the
replica.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from api.errors import CLIENT_GONE, WRITE_JSON, limit_headers
from api.inference.cache_salt import with_cache_salt
from api.inference.disconnect import DisconnectWatcher
from api.inference.judged_copies import JudgedCopy, PassingAnswer, is_judgeable, without_stream
from api.inference.lookup_cache import AUTHENTICATED, Authenticated, LookupCache
from api.inference.rate_limits.limiter import Admission, RateLimiter
from api.inference.replicas.failover import Failover
from api.inference.replicas.served_models import ServedModel
from api.inference.request_fields.grammars import GrammarLimits
from api.inference.request_fields.types import check_types
from api.inference.response import ProxiedResponse
from api.inference.shadow import ShadowTraffic
from api.inference.strict_json import refuse_loose_json
from api.inference.usage.meter import Meter
from api.inference.vllm_errors import error_from_replica
from api.metrics.requests import MODEL, ApiMetrics
from shared.database.callers.key_records import Key
from shared.database.gates.shadow_comparisons import ShadowPair
from shared.database.routing import Routing, sticky_point
from shared.errors import Code, InvalidRequest, NotFound, TooLarge, TooMany
from shared.observability.log_context import add_log_ids

MAX_EXPLAINED_BYTES = 1 << 20
"""Largest invalid JSON body that is parsed again to find the invalid field: parsing a larger one would block other
callers."""
LIMIT_HEADERS = "mens_limit_headers"
"""Name in a request's state of the headers with its key's limits, once the request is counted."""
REQUEST_ID = "mens_request_id"
"""Name in a request's state of its id: visible ASCII characters."""
SESSION_HEADER = "x-session-id"
WAIT_HEADER = "mens-max-wait"
"""Header with the seconds that the caller prefers to wait for a replica instead of getting 503."""
# A request that waits keeps its slot, so a caller may not choose any time.
MAX_WAIT_SECONDS = 60.0

Validate = Callable[[dict[str, Any]], dict[str, Any]]
Convert = Callable[[ProxiedResponse, dict[str, Any]], Response]


@dataclass(frozen=True)
class Gateway:
    """Handles one request to a model: limits, name, replica, response.

    Attributes:
        limiter: admits a key.
        lookup: finds adapters and bases by name.
        meter: counts tokens.
        failover: sends a request to replicas.
        shadows: sends copies to shadow adapters.
        metrics: metrics of this process.
        cache_secret: keeps tenants apart in vLLM's prefix cache.
        max_body_bytes: largest request body.
        grammar_limits: largest schemas and grammars of a request.
    """

    limiter: RateLimiter
    lookup: LookupCache
    meter: Meter
    failover: Failover
    shadows: ShadowTraffic
    metrics: ApiMetrics
    cache_secret: str
    max_body_bytes: int
    grammar_limits: GrammarLimits

    async def forward(
        self,
        request: Request,
        key: Key,
        tenant: str,
        path: str,
        *,
        validate: Validate | None = None,
        convert: Convert | None = None,
    ) -> Response:
        """Return a serving replica's response to a request, in the replica's own shape.

        Args:
            request: the request, its body not read yet.
            key: key whose limits and usage count.
            tenant: tenant whose names apply; an operator's key may act for a tenant other than its own.
            path: path on the replica.
            validate: checks the request's body and returns the one to send.
            convert: gives a response the shape that the request's body asks for.

        Raises:
            InvalidRequest: ``REQUEST_INVALID``.
            TooLarge: ``BODY_TOO_LARGE``. And the errors of ``validate`` and :meth:`open`.
        """
        try:
            body = await read_body(request, self.max_body_bytes)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        response = await self.open(request, key, tenant, path, body, validate)
        if response is None:
            return Response(status_code=CLIENT_GONE)
        return convert(response, body) if convert else response

    async def open(
        self,
        request: Request,
        key: Key,
        tenant: str,
        path: str,
        body: dict[str, Any],
        validate: Validate | None = None,
    ) -> ProxiedResponse | None:
        """Return a started response of a replica, with its key's slot held and its tokens counted; None if the caller
        disconnected.

        The caller of this method closes the response, by sending it or by ``aclose``.

        Args:
            request: the request, its body already read; its disconnect is watched, and its headers may choose the
                adapter.
            key: key whose limits and usage count.
            tenant: tenant whose names apply.
            path: path on the replica.
            body: the body for the replica, except for the model, which may be an alias.
            validate: checks the body and returns the one to send, once the request has been counted.

        Raises:
            InvalidRequest: ``REQUEST_INVALID``.
            NotFound: ``MODEL_NOT_FOUND``.
        """
        authenticated: Authenticated = request.scope[AUTHENTICATED]
        admission = await self.admit(request, key)
        disconnect, response = DisconnectWatcher(request.receive), None
        try:
            body = validate(body) if validate else body
            check_types(body)
            self.grammar_limits.check(body)
            choice = await choose_model(self.lookup, tenant, body, request.headers)
            salted = with_cache_salt(body, self.cache_secret, tenant)
            setattr(request.state, MODEL, choice.name)
            add_log_ids(model=choice.name, **({"adapter_id": choice.adapter} if choice.adapter else {}))
            observe = partial(self.metrics.used, choice.name)
            forwarded, tap = self.meter.of(key, choice.model.name, path, salted, admission.spend, observe)
            upstream = await disconnect.run_until_disconnect(
                self.failover.first_response(
                    path, forwarded, choice.model, max_wait(request.headers), replica_request_id(request)
                )
            )
            if upstream is None:
                return None
            if upstream.is_error:
                raise await error_from_replica(upstream, body, choice.model.name)
            offer, passing = self._offer_to_shadow(choice, tenant, path, forwarded)
            response = ProxiedResponse(
                upstream,
                tap,
                admission,
                disconnect,
                adapter=choice.adapter,
                renamed=(choice.model.name, body["model"]) if choice.is_foreign else None,
                recheck=partial(self.lookup.recheck, authenticated.secret),
                passing=passing,
                on_complete=offer,
            )
            return response
        finally:
            # A response that is returned releases both itself, when it has been sent.
            if response is None:
                disconnect.stop()
                await admission.release()

    async def admit(self, request: Request, key: Key) -> Admission:
        """Count a request of a key; from here on every answer carries the state of its limits
        (`api/web/response_headers.py`).
        """
        try:
            admission = await self.limiter.admit(key)
        except TooMany as error:
            setattr(request.state, LIMIT_HEADERS, limit_headers(error.details))
            raise
        setattr(request.state, LIMIT_HEADERS, admission.headers)
        return admission

    def _offer_to_shadow(
        self, choice: ModelChoice, tenant: str, path: str, forwarded: dict[str, Any]
    ) -> tuple[Callable[[], Awaitable[None]] | None, PassingAnswer | None]:
        """Return a function that offers a copy of the request to the alias's shadow once the caller has its answer, and
        the object that keeps the answer until then.

        Both are None for a request that is not copied; the second also for a request whose answers are not judged.
        """
        shadow = choice.routing.shadow if choice.routing else None
        if shadow is None or random.random() >= shadow.share:
            return None, None
        copied = self.lookup.served.of(shadow.adapter)
        send_copy = partial(self.failover.first_response, path, forwarded, copied)
        if not (shadow.eval and choice.adapter and is_judgeable(path, forwarded)):
            return partial(self.shadows.offer, choice.name, shadow.adapter, send_copy), None
        pair = ShadowPair(
            alias=choice.name, incumbent_id=choice.adapter, candidate_id=shadow.adapter, eval_id=shadow.eval
        )
        if self.shadows.judge and self.shadows.judge.has_decided(tenant, pair):
            return None, None
        passing = PassingAnswer()
        judged = JudgedCopy(tenant, pair, forwarded["messages"], passing)
        send_copy = partial(self.failover.first_response, path, without_stream(forwarded), copied)
        return partial(self.shadows.offer, choice.name, shadow.adapter, send_copy, judged), passing


def replica_request_id(request: Request) -> str:
    """Return the request's name at the replica: its id here with a unique suffix.

    vLLM derives the answer's id from it, and a caller may give one id to many requests.
    """
    request_id = getattr(request.state, REQUEST_ID, "")
    return f"{request_id}-{os.urandom(4).hex()}" if request_id else ""


def max_wait(headers: Mapping[str, str]) -> float:
    """Return the seconds that a request may wait for a replica: the caller's header, at most 60; without it 0.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    if (value := headers.get(WAIT_HEADER)) is None:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            "The header `Mens-Max-Wait` is not a number of seconds.",
            remedy=f"Send a number from 0 to {MAX_WAIT_SECONDS:g}, or leave it out.",
            param="Mens-Max-Wait",
        )
    return min(seconds, MAX_WAIT_SECONDS)


async def read_body(request: Request, limit: int) -> dict[str, Any]:
    """Read the request's JSON object.

    Raises:
        TooLarge: ``BODY_TOO_LARGE``.
        InvalidRequest: ``REQUEST_INVALID``: the body is not a JSON object.
        ClientDisconnect: the client has gone.
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
            raise TooLarge(Code.BODY_TOO_LARGE, f"The request body is larger than {limit} bytes.", remedy="Shorten it.")
    try:
        body = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        # The decoder mistakes half a surrogate pair at the end of a string for the body's end, and does not name the
        # field.
        if len(raw) <= MAX_EXPLAINED_BYTES:
            refuse_loose_json(bytes(raw))
        raise InvalidRequest(
            Code.REQUEST_INVALID, f"The request body is not JSON: {str(error).rstrip('.')}.", remedy=WRITE_JSON
        ) from None
    if not isinstance(body, dict):
        remedy = 'Send an object with its fields, such as {"model": …}.'
        raise InvalidRequest(Code.REQUEST_INVALID, "The request body is not a JSON object.", remedy=remedy)
    return body


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model that answers a request. A base model has neither ``adapter`` nor ``routing``.

    Attributes:
        model: the model as replicas know it.
        name: name of the alias, adapter or base.
        is_foreign: whether the request used a foreign name, which the response then contains.
    """

    model: ServedModel
    name: str
    adapter: str | None = None
    routing: Routing | None = None
    is_foreign: bool = False


async def choose_model(
    lookup: LookupCache, tenant: str, body: dict[str, Any], headers: Mapping[str, str] = MappingProxyType({})
) -> ModelChoice:
    """Resolve a request's ``model``: a base, an alias, an adapter, or the target of a foreign name.

    Args:
        tenant: tenant whose names apply, before those of ``shared``.
        headers: the request's headers, which may name a session.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``.
        InvalidRequest: ``REQUEST_INVALID``: it is not a name.
    """
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            "`model` must be a name.",
            remedy="Name a base, an adapter's id or an alias; GET /v1/models lists them.",
            param="model",
        )
    if lookup.is_base(model):
        await lookup.check_offered(model)
        return ModelChoice(lookup.served.of(model), model)
    # PostgreSQL rejects NUL characters in strings, and none of our names has an unprintable character.
    destination = await lookup.find(tenant, model) if model.isprintable() else None
    if destination is None or destination.routing is None:
        name = destination.name if destination else model
        # Not `is_base`, whose value may be outdated: the base may have been added or removed since.
        if any(base.name == name for base in lookup.catalog().bases):
            await lookup.check_offered(name)
            return ModelChoice(lookup.served.of(name), name, is_foreign=destination is not None)
        raise NotFound(
            Code.MODEL_NOT_FOUND,
            f"{model!r} stands for the base {name!r}, which no longer exists."
            if destination
            else f"The model {model!r} does not exist.",
            remedy="List the available models with GET /v1/models.",
            param="model",
        )
    adapter_id = destination.routing.main
    if len(destination.routing.targets) > 1:
        key = sticky_key(body, headers.get(SESSION_HEADER, ""))
        adapter_id = destination.routing.choose(sticky_point(destination.name, key))
    return ModelChoice(
        lookup.served.of(adapter_id), destination.name, adapter_id, destination.routing, destination.is_foreign
    )


def sticky_key(body: dict[str, Any], session: str = "") -> str:
    """Return a key that is the same for all requests of one user, session or conversation, so that they get the same
    adapter.

    The user that the request names comes first, then the session, then the beginning of the conversation: everything up to
    its first user message, because a system prompt alone is shared by many conversations.
    """
    for name in ("safety_identifier", "user"):
        if isinstance(body.get(name), str) and body[name]:
            return json.dumps(["user", body[name]])
    if session:
        return json.dumps(["session", session])
    messages = body.get("messages", body.get("input"))  # in the Responses API, the field `input` contains the chat
    if not isinstance(messages, list):
        return json.dumps(["prompt", body.get("prompt", messages)])
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    beginning = messages[: roles.index("user") + 1] if "user" in roles else messages[:1]
    return json.dumps(["messages", beginning], sort_keys=True)

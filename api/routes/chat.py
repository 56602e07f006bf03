"""Requests to models in OpenAI's shapes. These routes and Ollama's are the only ones that reach the serving tier."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from api.inference.gateway import Convert, Validate
from api.inference.request_fields.functions import (
    events_with_function_call,
    in_callers_names,
    uses_functions,
    whole_with_function_call,
)
from api.inference.request_fields.known import refuse_token_ids
from api.inference.request_validation import validate_chat, validate_completion, validate_response
from api.inference.response import ProxiedResponse
from api.services import Services, ServicesDep
from api.web.auth import TRAINER, Caller, CallerDep
from api.web.fast_path import FastPathRoute
from api.web.known_parameters import KNOWN_PARAMETERS
from shared.database.tenancy import Role
from shared.datasets.row_validation import ROLES
from shared.errors import MensError

router = APIRouter(prefix="/v1", tags=["chat (OpenAI)"], route_class=FastPathRoute)
TOKENS = [*TRAINER, KNOWN_PARAMETERS]

TEXTS = {"type": ["string", "array"], "minLength": 1, "minItems": 1}
MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {"role": {"enum": [*ROLES, "function"]}, "content": {"type": ["string", "array", "null"]}},
    },
}
STREAM = {"type": ["boolean", "null"], "description": "The response comes as server-sent events."}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
"""A response that may be a stream, for the OpenAPI document."""


def described(*required: str, **fields: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of a request whose body the route reads itself.

    Args:
        required: names of fields, besides ``model``.
        fields: schemas of the fields that a caller cannot guess; docs/openai.md describes all others.
    """
    properties = {"model": {"type": "string", "description": "A base, an adapter's id or an alias."}, **fields}
    session = {
        "name": "X-Session-Id",
        "in": "header",
        "required": False,
        "schema": {"type": "string"},
        "description": "Keeps a session on one adapter of a split alias if the body does not set `user`.",
    }
    schema = {"type": "object", "required": ["model", *required], "properties": properties}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"parameters": [session], "requestBody": body}


@router.post(
    "/chat/completions", openapi_extra=described("messages", messages=MESSAGES, stream=STREAM), responses=STREAMED
)
async def chat_completions(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """A chat completion by a base model, an adapter or an alias, in OpenAI's shape, streamed or not.

    The response header X-Mens-Adapter names the adapter.
    """
    written: dict[str, Any] = {}

    def validate(body: dict[str, Any]) -> dict[str, Any]:
        written.update(body)
        return validate_chat(body)

    try:
        return await _forward(request, services, caller, "/v1/chat/completions", validate, _as_requested)
    except MensError as error:
        raise in_callers_names(error, written) from None


@router.post("/completions", openapi_extra=described(prompt=TEXTS, stream=STREAM), responses=STREAMED)
async def completions(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """A text completion by a base model, an adapter or an alias, in OpenAI's shape, streamed or not."""
    return await _forward(request, services, caller, "/v1/completions", validate_completion)


@router.post("/responses", openapi_extra=described("input", input=TEXTS, stream=STREAM), responses=STREAMED)
async def responses(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """A response of OpenAI's Responses API, streamed or not. Nothing is stored: a request carries the whole conversation."""
    return await _forward(request, services, caller, "/v1/responses", validate_response)


@router.post("/embeddings", openapi_extra=described("input", input=TEXTS))
async def embeddings(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Embeddings by an embedding model, in OpenAI's shape. A model that generates text cannot make them."""
    return await _forward(request, services, caller, "/v1/embeddings")


@router.post("/tokenize", openapi_extra=described(prompt={"type": "string"}, messages=MESSAGES), dependencies=TOKENS)
async def tokenize(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Token ids of a ``prompt``, or of ``messages`` in the model's chat template, in vLLM's shape."""
    return await services.gateway.forward(request, caller.key, caller.tenant, "/tokenize")


@router.post(
    "/detokenize",
    openapi_extra=described("tokens", tokens={"type": "array", "items": {"type": "integer"}}),
    dependencies=TOKENS,
)
async def detokenize(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """The text of ``tokens``, in vLLM's shape."""
    return await services.gateway.forward(request, caller.key, caller.tenant, "/detokenize")


async def _forward(
    request: Request,
    services: Services,
    caller: Caller,
    path: str,
    validate: Validate | None = None,
    convert: Convert | None = None,
) -> Response:
    """Return the gateway's response. A caller who may not read token ids does not get any in an answer."""

    def check(body: dict[str, Any]) -> dict[str, Any]:
        if not caller.role.includes(Role.TRAINER):
            refuse_token_ids(body)
        return validate(body) if validate else body

    return await services.gateway.forward(request, caller.key, caller.tenant, path, validate=check, convert=convert)


def _as_requested(response: ProxiedResponse, body: dict[str, Any]) -> Response:
    """Return the response with ``function_call`` if the request has ``functions``."""
    if not uses_functions(body):
        return response
    convert = events_with_function_call if body.get("stream") else whole_with_function_call
    return response.converted(convert(response), {})

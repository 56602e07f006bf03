"""The part of Ollama's API that reaches models: chat, generate, tags, version. Errors have Ollama's shape too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from api.errors import (
    CLIENT_GONE,
    OllamaErrorAnswer,
    declared,
    interrupted_response,
    ollama_error_body,
    ollama_error_response,
    validation_error,
)
from api.inference.gateway import read_body
from api.inference.replicas.client import ReplicaDisconnected
from api.inference.response import ProxiedResponse
from api.ollama.requests import UpstreamCall, translate_chat, translate_generate
from api.ollama.responses import ResponseBuilder, as_chat, as_generate, chunks, tag
from api.ollama.types import ChatRequest, GenerateRequest
from api.openai.types import Model
from api.routes.models import rendered_models
from api.services import Services, ServicesDep
from api.web.auth import Caller, CallerDep
from shared.errors import MensError

NDJSON = "application/x-ndjson"
SEE_FIELDS = "docs/ollama.md lists the fields and options that have an effect, and those that may only be sent empty."

RequestT = TypeVar("RequestT", ChatRequest, GenerateRequest)
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class OllamaRoute(APIRoute):
    """A route whose errors are ``{"error": message, "code": code}``, including those of its dependencies."""

    def get_route_handler(self) -> Handler:
        """Return the handler, with errors turned into responses."""
        handle = super().get_route_handler()

        async def respond(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return ollama_error_response(validation_error(error, SEE_FIELDS))
            except MensError as error:
                return ollama_error_response(error)
            except ClientDisconnect:
                return Response(status_code=CLIENT_GONE)

        return respond


router = APIRouter(
    prefix="/api",
    tags=["chat (Ollama)"],
    route_class=OllamaRoute,
    responses=declared(OllamaErrorAnswer),
)


BODY: dict[str, Any] = {
    "requestBody": {
        "description": "As in Ollama's documentation; docs/ollama.md lists the fields that have an effect.",
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "required": ["model"], "properties": {"model": {"type": "string"}}}
            }
        },
    }
}
"""Request body in the OpenAPI document: the route reads it itself, within the size limit, so FastAPI does not describe
it."""
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {NDJSON: {}}}}
"""A response that may be a stream, for the OpenAPI document."""


@router.post("/chat", openapi_extra=BODY, responses=STREAMED)
async def chat(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """The next message of a chat, in Ollama's shape: a stream of JSON lines unless ``stream`` is false."""
    body = await _read(request, services, ChatRequest)
    builder = ResponseBuilder(body.model, as_chat)
    return await _respond(request, services, caller, body, translate_chat(body), builder)


@router.post("/generate", openapi_extra=BODY, responses=STREAMED)
async def generate(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """The completion of one prompt, in Ollama's shape: a stream of JSON lines unless ``stream`` is false."""
    body = await _read(request, services, GenerateRequest)
    builder = ResponseBuilder(body.model, as_generate)
    return await _respond(request, services, caller, body, translate_generate(body), builder)


@router.get("/tags", response_model=dict[str, Any])
async def tags(services: ServicesDep, caller: CallerDep) -> Response:
    """All models that ``model`` can name, in Ollama's shape."""
    entries = await rendered_models(services, caller, _tag_entry)
    return Response(b'{"models":[%b]}' % entries, media_type="application/json")


@router.get("/version")
def version(request: Request) -> dict[str, str]:
    """The version of this API. Ollama's clients compare it as numbers."""
    return {"version": request.app.version, "ollama": "compat-subset", "runtime": "vllm"}


async def _read(request: Request, services: Services, kind: type[RequestT]) -> RequestT:
    body = await read_body(request, services.settings.max_body_bytes)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False), body=body) from None


async def _respond(
    request: Request,
    services: Services,
    caller: Caller,
    body: ChatRequest | GenerateRequest,
    call: UpstreamCall,
    builder: ResponseBuilder,
) -> Response:
    path, translated = call
    response = await services.gateway.open(request, caller.key, caller.tenant, path, translated)
    if response is None:
        return Response(status_code=CLIENT_GONE)
    if translated.get("stream"):
        return response.converted(_lines(response, builder), {"content-type": NDJSON})
    try:
        completion = json.loads(b"".join([chunk async for chunk in response]))
    except ReplicaDisconnected:
        raise interrupted_response() from None
    finally:
        await response.aclose()
    headers = {name: value for name, value in response.passed_headers.items() if name != "content-type"}
    return JSONResponse(builder.loaded() if body.only_loads else builder.whole(completion), headers=headers)


async def _lines(response: ProxiedResponse, builder: ResponseBuilder) -> AsyncIterator[bytes]:
    """Yield Ollama's stream. An error after its beginning is its last line, as Ollama's clients expect."""
    try:
        async for chunk in chunks(response):
            for line in builder.lines(chunk):
                yield _line(line)
        yield _line(builder.last())
    except MensError as error:
        yield _line(ollama_error_body(error))
    except ReplicaDisconnected:
        yield _line(ollama_error_body(interrupted_response()))


def _tag_entry(model: Model) -> bytes:
    return json.dumps(tag(model), ensure_ascii=False, separators=(",", ":")).encode()


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"

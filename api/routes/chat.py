"""Asking models, in OpenAI's shapes. These routes and Ollama's, and no others, reach the serving tier."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from api.authentication import CallerDep, requires
from api.gateway import proxy
from api.model_route import ModelRoute
from api.openai_questions import asks_chat, asks_completion
from api.responses import stateless
from api.services import ServicesDep
from shared.tenancy import Role

router = APIRouter(prefix="/v1", tags=["chat (OpenAI)"], route_class=ModelRoute)

TRAINER = [requires(Role.TRAINER)]
BODY: dict[str, Any] = {
    "parameters": [
        {
            "name": "X-Session-Id",
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
            "description": "Keeps a session on one adapter of a split alias, when the body names no user.",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "required": ["model"], "properties": {"model": {"type": "string"}}}
            }
        },
    },
}


@router.post("/chat/completions", openapi_extra=BODY)
async def chat_completions(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """A chat completion by a base, an adapter or an alias; OpenAI's request and answer, streamed or not.

    Which adapter answered is in the header X-Mens-Adapter.
    """
    return await proxy(services, caller, request, "/v1/chat/completions", prepare=asks_chat)


@router.post("/completions", openapi_extra=BODY)
async def completions(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """A text completion by a base, an adapter or an alias."""
    return await proxy(services, caller, request, "/v1/completions", prepare=asks_completion)


@router.post("/responses", openapi_extra=BODY)
async def responses(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """A response, streamed or not. Nothing is stored, so a request brings the whole conversation."""
    return await proxy(services, caller, request, "/v1/responses", prepare=stateless)


@router.post("/embeddings", openapi_extra=BODY)
async def embeddings(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Embeddings, of a model that makes them; one that generates text does not."""
    return await proxy(services, caller, request, "/v1/embeddings")


@router.post("/tokenize", openapi_extra=BODY, dependencies=TRAINER)
async def tokenize(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """The token ids of a ``prompt``, or of ``messages`` in the model's chat template; vLLM's request and answer."""
    return await proxy(services, caller, request, "/tokenize")


@router.post("/detokenize", openapi_extra=BODY, dependencies=TRAINER)
async def detokenize(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """The text of ``tokens``; vLLM's request and answer."""
    return await proxy(services, caller, request, "/detokenize")

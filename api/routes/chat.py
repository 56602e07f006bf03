"""Asking models: /v1/chat/completions and /v1/completions. These routes, and no others, reach the serving tier."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from api.gateway import proxy
from api.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["chat (OpenAI)"])

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
async def chat_completions(request: Request, services: ServicesDep) -> Response:
    """A chat completion by a base, an adapter or an alias; OpenAI's request and answer, streamed or not.

    Which adapter answered is in the header X-Mens-Adapter.
    """
    return await proxy(services, request, "/v1/chat/completions")


@router.post("/completions", openapi_extra=BODY)
async def completions(request: Request, services: ServicesDep) -> Response:
    """A text completion by a base, an adapter or an alias."""
    return await proxy(services, request, "/v1/completions")

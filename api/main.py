"""The application: ``python -m api``, or ``uvicorn --factory api.main:create_app``."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import problems
from api.authentication import require_key
from api.routes import aliases, chat, files, fine_tuning, health, jobs, models, replicas
from api.services import make_services
from api.settings import ApiSettings

VERSION = "0.1.0"
KEYED_ROUTERS = (
    files.router,
    fine_tuning.router,
    jobs.router,
    models.router,
    aliases.router,
    chat.router,
    replicas.router,
)


def create_app(settings: ApiSettings | None = None) -> FastAPI:
    """Build the application.

    Args:
        settings: from the environment when None.
    """
    app = FastAPI(title="Mens", version=VERSION, lifespan=_lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = make_services(settings or ApiSettings())
    problems.install(app)
    app.include_router(health.router)
    for router in KEYED_ROUTERS:
        app.include_router(router, dependencies=[Depends(require_key)])
    app.get("/v1/openapi.json", tags=["schema"], dependencies=[Depends(require_key)])(lambda: _openapi(app))
    app.add_middleware(RequestId)
    return app


class RequestId:
    """Gives every answer an ``x-request-id``, the caller's own when it sent one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = dict(scope["headers"]).get(b"x-request-id", b"")[:128]
        request_id = given or f"req_{uuid.uuid4().hex}".encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [pair for pair in message.get("headers", []) if pair[0] != b"x-request-id"]
                message["headers"] = [*headers, (b"x-request-id", request_id)]
            await send(message)

        return await self._app(scope, receive, send_with_id)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.services.watch.start()
    yield
    await app.state.services.watch.close()
    await app.state.services.shadows.close()
    await app.state.services.upstream.aclose()
    app.state.services.database.close()


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The API's OpenAPI document."""
    return app.openapi()

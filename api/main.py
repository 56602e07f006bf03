"""The application: ``python -m api``, or ``uvicorn --factory api.main:create_app``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI

from api import problems
from api.authentication import require_caller
from api.model_route import ModelLane
from api.request_log import RequestLog
from api.routes import aliases, chat, deletion, files, fine_tuning, health, jobs, keys, models, ollama, replicas, usage
from api.services import Services, make_services
from api.settings import ApiSettings
from shared.settings import read_settings

VERSION = "0.1.0"
KEYED_ROUTERS = (
    chat.router,  # first, because the router tries them in turn and its callers wait for a first token
    files.router,
    fine_tuning.router,
    jobs.router,
    models.router,
    deletion.router,
    aliases.router,
    ollama.router,
    replicas.router,
    keys.router,
    usage.router,
)


def create_app(settings: ApiSettings | None = None) -> FastAPI:
    """Build the application.

    Args:
        settings: from the environment when None.
    """
    app = FastAPI(title="Mens", version=VERSION, lifespan=_lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = make_services(settings or read_settings(ApiSettings))
    problems.install(app)
    app.include_router(health.router)
    for router in KEYED_ROUTERS:
        app.include_router(router, dependencies=[Depends(require_caller)])
    app.get("/v1/openapi.json", tags=["schema"], dependencies=[Depends(require_caller)])(lambda: _openapi(app))
    app.add_middleware(ModelLane)
    app.add_middleware(RequestLog)  # around it
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    services.watch.start()
    services.directory.start()
    yield
    await services.watch.close()
    await services.shadows.close()
    await services.upstream.aclose()
    await services.limiter.close()
    await services.meter.close()
    await services.directory.close()
    services.database.close()


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The API's OpenAPI document."""
    return app.openapi()

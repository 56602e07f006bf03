"""The application: ``python -m api``, or ``uvicorn --factory api.main:create_app``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import Depends, FastAPI

from api import errors
from api.routes import (
    aliases,
    chat,
    console,
    deletion,
    evals,
    fine_tuning,
    graders,
    health,
    job_events,
    job_metrics,
    jobs,
    models,
    names,
    ollama,
    plan_comparisons,
    replicas,
)
from api.routes.callers import keys, me, sign_ins, single_sign_on
from api.routes.files import files, rows, uploads
from api.routes.gates import policies, promotions, receipts, shadows
from api.routes.tenants import audit, checkpoint_permissions, overview, quotas, usage, webhooks
from api.services import Services, make_services
from api.settings import ApiSettings
from api.web.auth import require_caller
from api.web.console.files import console_files
from api.web.exchange import ExchangeMiddleware
from api.web.fast_path import FastPathMiddleware
from api.web.known_parameters import KNOWN_PARAMETERS
from api.web.request_guard import RequestGuard
from shared.observability.tracing import start_tracing, stop_tracing
from shared.settings import read_settings

VERSION = "0.1.0"
KEYED_ROUTERS = (
    chat.router,  # first: routes are tried in order, and callers of these routes wait for a first token
    files.router,
    rows.router,
    uploads.router,
    fine_tuning.router,
    checkpoint_permissions.router,
    graders.router,
    evals.router,
    jobs.router,
    job_events.router,
    job_metrics.router,
    plan_comparisons.router,
    models.router,
    deletion.router,
    aliases.router,
    shadows.router,
    names.router,
    promotions.router,
    policies.router,
    receipts.router,
    ollama.router,
    replicas.router,
    quotas.router,
    overview.router,
    keys.router,
    me.router,
    usage.router,
    webhooks.router,
    audit.router,
)


def create_app(settings: ApiSettings | None = None, services: Services | None = None) -> FastAPI:
    """Build the application.

    Args:
        settings: None: from the environment.
        services: None: created from the settings.
    """
    app = FastAPI(
        title="Mens",
        version=VERSION,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # slashes are stripped before
        responses=errors.declared(errors.ErrorAnswer),
    )
    app.state.services = services or make_services(settings or read_settings(ApiSettings))
    errors.install(app)
    app.include_router(health.router)
    if app.state.services.settings.console:
        console_files()  # read now, so that a faulty installation fails at its start and no request waits
        app.include_router(console.router)
        app.include_router(sign_ins.keyless_router, dependencies=[KNOWN_PARAMETERS])
        app.include_router(single_sign_on.router, dependencies=[KNOWN_PARAMETERS])
        app.include_router(sign_ins.router, dependencies=[Depends(require_caller), KNOWN_PARAMETERS])
    for router in KEYED_ROUTERS:
        # Requests to models skip FastAPI's dependencies.
        checks = [] if router is chat.router else [KNOWN_PARAMETERS]
        app.include_router(router, dependencies=[Depends(require_caller), *checks])
    app.get(
        "/v1/openapi.json",
        tags=["schema"],
        summary="OpenAPI Document",
        description="This document: the OpenAPI description of the whole API.",
        operation_id="_lambda__v1_openapi_json_get",  # public, so it keeps its first value
        response_model=None,
        dependencies=[Depends(require_caller), KNOWN_PARAMETERS],
    )(app.openapi)
    app.add_middleware(FastPathMiddleware)
    app.add_middleware(RequestGuard)
    app.add_middleware(ExchangeMiddleware)  # the last added is the outermost
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    start_tracing(services.settings.otlp_endpoint, "mens-api")
    services.start()
    await to_thread.run_sync(services.assign_server_policy)
    yield
    await services.close()
    await to_thread.run_sync(stop_tracing)

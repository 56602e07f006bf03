"""Liveness and readiness: the only routes that need no key. So they take no thread of the pool, which strangers could fill."""

from __future__ import annotations

from fastapi import APIRouter

from api.services import ServicesDep

router = APIRouter(tags=["health"])


@router.get("/health")
async def health() -> dict[str, str]:
    """Liveness: the process answers."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(services: ServicesDep) -> dict[str, str]:
    """Readiness: the database answers, or did within the last second. The broker is not checked: the sweeper enqueues jobs again later."""
    await services.readiness.check()
    return {"status": "ready"}

"""Liveness and readiness: the only routes without a key. So they use no pool thread: strangers could fill it."""

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

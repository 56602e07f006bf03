"""Liveness and readiness: the only routes that need no key."""

from __future__ import annotations

from fastapi import APIRouter

from api.services import ServicesDep

router = APIRouter(tags=["health"])


@router.get("/health")
def health() -> dict[str, str]:
    """Liveness: the process answers."""
    return {"status": "ok"}


@router.get("/ready")
def ready(services: ServicesDep) -> dict[str, str]:
    """Readiness: the database answers. The broker is not checked: the sweeper enqueues jobs again later."""
    services.database.ping()
    return {"status": "ready"}

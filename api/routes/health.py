"""Health: the only routes without a key."""

from __future__ import annotations

from fastapi import APIRouter

from api.services import ServicesDep

router = APIRouter(tags=["health"])


@router.get("/health")
def health() -> dict[str, str]:
    """Whether the process answers."""
    return {"status": "ok"}


@router.get("/ready")
def ready(services: ServicesDep) -> dict[str, str]:
    """Whether requests can be served: the database answers. The broker is no condition: the sweeper rings later."""
    services.database.ping()
    return {"status": "ready"}

"""Liveness and readiness: the only routes without a key. So they use no pool thread: strangers could fill it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from api.polling.readiness import ANSWER_SECONDS
from api.services import Services, ServicesDep
from api.web.auth import Caller
from api.web.request_guard import authenticate
from shared.errors import MensError

router = APIRouter(tags=["health"])


class WorkerFault(BaseModel):
    """Reason why a worker takes no job."""

    code: str | None = Field(description="Error code of the fault; null: reported by a worker of an earlier release.")
    message: str | None = Field(description="The worker and its fault; null without an operator's key.")


class Ready(BaseModel):
    """State of an API process that can take requests."""

    status: Literal["ready"] = "ready"
    worker_faults: list[WorkerFault] = Field(description="One for each worker that takes no job because of a fault.")


@router.get("/health")
async def health() -> dict[str, str]:
    """Liveness: the process answers."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request, services: ServicesDep) -> Ready:
    """Readiness: the database answers, or answered within the last second; a single slow answer changes nothing. The
    broker is not checked: the control worker enqueues jobs again later.

    Workers that take no job because of a fault, e.g. a full disk, are listed, but the API is ready nevertheless. No key is
    needed; with an operator's, the faults name their workers.
    """
    until = asyncio.get_running_loop().time() + ANSWER_SECONDS
    await services.readiness.check(until)
    faulty = await services.readiness.faulty_machines(until)
    is_named = bool(faulty) and await _is_operator_by(until, services, request)
    faults = [WorkerFault(code=machine.fault_code, message=machine.fault if is_named else None) for machine in faulty]
    return Ready(worker_faults=faults)


async def _is_operator_by(until: float, services: Services, request: Request) -> bool:
    """Return whether a request has an operator's key; false if the database did not respond in time."""
    # Never cancelled: an unknown key counts as a guess, however late it is looked up.
    lookup = asyncio.create_task(_is_operator(services, request))
    with suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            return await asyncio.shield(lookup)
    return False


async def _is_operator(services: Services, request: Request) -> bool:
    """Return whether a request has an operator's key; a probe with another key, or without one, is also answered."""
    try:
        key = (await authenticate(services, request.scope)).key
    except MensError:
        return False
    return Caller(key, key.tenant, key.role).is_operator

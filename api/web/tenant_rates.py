"""Per-tenant limits on expensive API calls: uploads, plans and graders. Dependencies of their routes."""

from __future__ import annotations

from fastapi import Depends

from api.services import ServicesDep
from api.web.auth import CallerDep


async def count_upload(services: ServicesDep, caller: CallerDep) -> None:
    """Raises:
    TooMany: ``RATE_LIMITED``.
    """
    await services.gateway.limiter.count(caller.key, "uploads", services.settings.tenant_uploads_per_minute)


async def count_plan(services: ServicesDep, caller: CallerDep) -> None:
    """Raises:
    TooMany: ``RATE_LIMITED``.
    """
    await services.gateway.limiter.count(caller.key, "plans", services.settings.tenant_plans_per_minute)


async def count_grader(services: ServicesDep, caller: CallerDep) -> None:
    """Raises:
    TooMany: ``RATE_LIMITED``.
    """
    await services.gateway.limiter.count(caller.key, "graders", services.settings.tenant_graders_per_minute)


UPLOAD_LIMIT, PLAN_LIMIT, GRADER_LIMIT = Depends(count_upload), Depends(count_plan), Depends(count_grader)

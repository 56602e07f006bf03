"""Per-tenant limits on expensive API calls: uploads, plans, graders, and views of files. Dependencies of their routes."""

from __future__ import annotations

from fastapi import Depends

from api.services import ServicesDep
from api.web.auth import CallerDep


async def count_upload(services: ServicesDep, caller: CallerDep) -> None:
    """Count an upload against its tenant's limit."""
    await services.gateway.limiter.count(caller.key, "uploads", services.settings.tenant_uploads_per_minute)


async def count_plan(services: ServicesDep, caller: CallerDep) -> None:
    """Count a plan or a new job against its tenant's limit."""
    await services.gateway.limiter.count(caller.key, "plans", services.settings.tenant_plans_per_minute)


async def count_grader(services: ServicesDep, caller: CallerDep) -> None:
    """Count a run or validation of a grader against its tenant's limit."""
    await services.gateway.limiter.count(caller.key, "graders", services.settings.tenant_graders_per_minute)


async def count_file_view(services: ServicesDep, caller: CallerDep) -> None:
    """Count a page or report on a file against its tenant's limit."""
    await services.gateway.limiter.count(caller.key, "file views", services.settings.tenant_file_views_per_minute)


UPLOAD_LIMIT, PLAN_LIMIT, GRADER_LIMIT = Depends(count_upload), Depends(count_plan), Depends(count_grader)
FILE_VIEW_LIMIT = Depends(count_file_view)

"""Quotas of tenants: /v1/quota, which each tenant sees and operators set, and /v1/quotas, for operators."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from pydantic import ConfigDict

from api.services import ServicesDep
from api.web.auth import CallerDep, require_operator
from api.web.params import WholeList
from shared.database.queueing.quotas import Quota, Quotas, QuotaUse

router = APIRouter(prefix="/v1", tags=["quotas"])


class ChangeQuota(Quota):
    """New limits of a tenant's jobs. A field that is left out keeps its value; null removes the limit."""

    model_config = ConfigDict(extra="forbid")


@router.get("/quota")
def retrieve_quota(services: ServicesDep, caller: CallerDep) -> QuotaUse:
    """The tenant's quota, and its use of it: running and waiting jobs, and GPU-minutes of this month used and held."""
    return Quotas(services.database).use(caller.tenant)


@router.patch("/quota", dependencies=[Depends(require_operator)])
def change_quota(body: ChangeQuota, services: ServicesDep, caller: CallerDep) -> QuotaUse:
    """Change the quota of the tenant that `X-Mens-Tenant` names; for operators. It applies to the next submission and
    the next claim.
    """
    return Quotas(services.database).set(caller.tenant, body.model_dump(exclude_unset=True))


@router.get("/quotas", dependencies=[Depends(require_operator)])
def list_quotas(services: ServicesDep) -> WholeList[QuotaUse]:
    """Quotas and use of every tenant that has a quota, unfinished jobs, or GPU time in this month; for operators."""
    return WholeList(data=Quotas(services.database).all())

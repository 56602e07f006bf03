"""/v1/tenants: every tenant side by side, for operators."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from api.services import ServicesDep
from api.web.auth import require_operator
from api.web.params import Id, WholeList
from shared.database.overview.tenants import TenantOverview, TenantRecord, Tenants

router = APIRouter(prefix="/v1/tenants", tags=["tenants"], dependencies=[Depends(require_operator)])


@router.get("")
def list_tenants(services: ServicesDep) -> WholeList[TenantOverview]:
    """Every tenant: its quota and its use of it, valid keys, stored files, and when it was last active; for operators."""
    return WholeList(data=list(Tenants(services.database).all()))


@router.get("/{name}")
def retrieve_tenant(name: Id, services: ServicesDep) -> TenantRecord:
    """One tenant, with its keys; for operators."""
    return Tenants(services.database).get(name)

"""The caller of a request, and its rights: ``GET /v1/me``."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from api.inference.lookup_cache import AUTHENTICATED, Authenticated
from api.polling.job_changes import CURSOR_HEADER, HAS_CURSOR
from api.services import ServicesDep
from api.web.auth import CallerDep
from shared.database.tenancy import Role

router = APIRouter(prefix="/v1/me", tags=["keys"])


class Membership(BaseModel):
    """A tenant that a caller may act for, and its role there."""

    tenant: str
    role: Role


class CallerNow(BaseModel):
    """The caller of this request, and the release that answers."""

    object: Literal["caller"] = "caller"
    name: str = Field(description="Name of the key, or of the person.")
    kind: Literal["key", "person"]
    tenant: str = Field(description="Tenant that the request acts for.")
    role: Role = Field(description="Role in that tenant.")
    is_operator: bool = Field(description="An admin of `shared`, who may act for every tenant by X-Mens-Tenant.")
    tenants: list[Membership] = Field(description="Tenants of the caller, with its role there.")
    expires_at: datetime | None = Field(description="Time from which the key or sign-in is refused; null: never.")
    release: str = Field(description="Version of the API.")


def begin_of_changes(services: ServicesDep, response: Response) -> None:
    """Name the place from which a stream has what the caller's next requests may miss. It may read the database."""
    response.headers[CURSOR_HEADER] = services.job_changes.cursor()


@router.get("", responses=HAS_CURSOR, dependencies=[Depends(begin_of_changes)])
async def me(request: Request, services: ServicesDep, caller: CallerDep) -> CallerNow:
    """The caller: name, tenant, role, and how long its key or sign-in is valid."""
    authenticated: Authenticated = request.scope[AUTHENTICATED]
    key, ends = caller.key, [caller.key.expires_at]
    if not isinstance(authenticated.secret, str):
        ends.append(await services.lookup.sign_in_end(authenticated.secret))
    return CallerNow(
        name=key.name,
        kind="key" if key.subject is None else "person",
        tenant=caller.tenant,
        role=caller.role,
        is_operator=caller.is_operator,
        tenants=[Membership(tenant=key.tenant, role=key.role)],
        expires_at=min((end for end in ends if end), default=None),
        release=request.app.version,
    )

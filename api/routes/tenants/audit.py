"""/v1/audit: who changed what, for admins of the tenant and, for every tenant, for operators."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, Strict, StrictInt

from api.services import ServicesDep
from api.web.auth import Caller, CallerDep, require_operator, requires
from api.web.params import NO_NUL, Page, page_of
from shared.database.overview.audit_log import AuditEvent, AuditFilter, AuditLog
from shared.database.tenancy import SHARED, Role, TenantName
from shared.errors import Code, Forbidden

router = APIRouter(prefix="/v1/audit", tags=["audit"])

# The column is a 64-bit integer: PostgreSQL answers a larger number with an error of the server.
MAX_SEQ = 2**63 - 1
Text = Annotated[str | None, Query(pattern=NO_NUL, max_length=320)]
Seq = Annotated[int, Field(ge=0, le=MAX_SEQ)]


class PruneAudit(BaseModel):
    """Events that an export contains, and that may be deleted."""

    model_config = ConfigDict(extra="forbid")
    through: Annotated[Seq, Strict()] = Field(description="Number of the last one.")
    events: StrictInt = Field(
        ge=0, description="Number of these events; refused if it differs from the number in the log."
    )


class PrunedAudit(BaseModel):
    """Range of deleted events."""

    object: Literal["audit.pruned"] = "audit.pruned"
    through: int
    events: int


@router.get("", dependencies=[requires(Role.ADMIN)])
def list_audit_events(
    services: ServicesDep,
    caller: CallerDep,
    action: Annotated[Text, Query(description="`key.rotated`, or `key` for all events of keys.")] = None,
    actor: Annotated[Text, Query(description="Id or name of the actor.")] = None,
    object_id: Annotated[Text, Query(description="Id or name of the changed object.")] = None,
    tenant: Annotated[
        TenantName | None,
        Query(description="Only events of this tenant; without it, an operator gets the events of all tenants."),
    ] = None,
    since: Annotated[AwareDatetime | None, Query(description="Earliest time.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Before this time.")] = None,
    after: Annotated[Seq | None, Query(description="`seq` of the last event of the previous page.")] = None,
    order: Annotated[Literal["asc", "desc"], Query(description="`asc`: oldest first, to follow the log.")] = "desc",
    limit: Annotated[int, Query(ge=1, le=1000, description="Events per page.")] = 100,
) -> Page[AuditEvent]:
    """Changes that were made, newest first. An event is written with its change, so neither exists without the
    other.
    """
    which = AuditFilter(_tenant(caller, tenant), action, actor, object_id, since, until)
    events = AuditLog(services.database).list(which, after=after, limit=limit, newest_first=order == "desc")
    return page_of(events, limit)


@router.post("/prune", dependencies=[Depends(require_operator)])
def prune_audit_events(body: PruneAudit, services: ServicesDep) -> PrunedAudit:
    """Delete the events of all tenants up to a number, after they were exported; for operators. The log gets an event
    of this deletion.
    """
    events = AuditLog(services.database).prune(body.through, body.events)
    return PrunedAudit(through=body.through, events=events)


def _tenant(caller: Caller, requested: str | None) -> str | None:
    """Return the tenant whose events the caller gets, or None for the events of every tenant."""
    if caller.is_operator and caller.tenant == SHARED:
        return requested
    if requested not in (None, caller.tenant):
        raise Forbidden(
            Code.TENANT_FORBIDDEN,
            f"An admin of {caller.tenant!r} can only read that tenant's events, not those of {requested!r}.",
            remedy="Leave `tenant` out.",
            param="tenant",
        )
    return caller.tenant

"""/v1/fine_tuning/checkpoints/{model}/permissions: which other tenants may use an adapter, in the form of OpenAI's
clients.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from api.openai.types import unix_seconds
from api.services import ServicesDep
from api.web.auth import CallerDep, requires
from api.web.params import NO_NUL, After, Id, IdPage, Limit, id_page_fields
from shared.database.lending.checkpoint_permissions import CheckpointPermission, CheckpointPermissions, Order
from shared.database.tenancy import SHARED, Role, TenantName
from shared.errors import Code, Forbidden

router = APIRouter(
    prefix="/v1/fine_tuning/checkpoints/{model}/permissions",
    tags=["fine-tuning (OpenAI)"],
    dependencies=[requires(Role.ADMIN)],
)

Project = Annotated[TenantName, Field(description="A tenant, which need not have a key yet.")]


class CreatePermissions(BaseModel):
    """Tenants that may use the adapter."""

    model_config = ConfigDict(extra="forbid")
    project_ids: Annotated[list[Project], Field(min_length=1, max_length=100)]


class Permission(BaseModel):
    """OpenAI's permission of a project for a checkpoint."""

    id: str
    created_at: int
    object: Literal["checkpoint.permission"] = "checkpoint.permission"
    project_id: str


class PermissionPage(IdPage[Permission]):
    """One page of permissions."""


class DeletedPermission(BaseModel):
    """A permission that was taken back."""

    id: str
    object: Literal["checkpoint.permission"] = "checkpoint.permission"
    deleted: bool = True


@router.post("")
def create_permissions(model: Id, body: CreatePermissions, services: ServicesDep, caller: CallerDep) -> PermissionPage:
    """Let other tenants use an adapter or a checkpoint: request it, point aliases to it, and read its files.

    A tenant that has a permission keeps it. Only an operator may name `shared`, which stands for every tenant.
    """
    if SHARED in body.project_ids and not caller.is_operator:
        raise Forbidden(
            Code.TENANT_FORBIDDEN,
            f"A permission for {SHARED!r} applies to every tenant; only an operator may create it.",
            remedy="Name the tenants that may use it.",
            param="project_ids",
        )
    made = CheckpointPermissions(services.database, caller.tenant).grant(model, body.project_ids)
    services.lookup.invalidate()
    return _page(made, has_more=False)


@router.get("")
def list_permissions(
    model: Id,
    services: ServicesDep,
    caller: CallerDep,
    after: After = None,
    limit: Limit = 10,
    order: Order = "descending",
    project_id: Annotated[str | None, Query(pattern=NO_NUL, description="Only this tenant's permission.")] = None,
) -> PermissionPage:
    """Permissions for an adapter or a checkpoint of the tenant, by the time at which they were given."""
    permissions = CheckpointPermissions(services.database, caller.tenant).of_adapter(model, order, project_id)
    ids = [permission.id for permission in permissions]
    start = ids.index(after) + 1 if after in ids else 0
    return _page(permissions[start : start + limit], has_more=len(permissions) > start + limit)


@router.delete("/{permission_id}")
def delete_permission(model: Id, permission_id: Id, services: ServicesDep, caller: CallerDep) -> DeletedPermission:
    """Take a permission back. It is refused while aliases or unfinished jobs of that tenant need the adapter."""
    CheckpointPermissions(services.database, caller.tenant).revoke(model, permission_id)
    services.lookup.invalidate()
    return DeletedPermission(id=permission_id)


def _page(permissions: list[CheckpointPermission], *, has_more: bool) -> PermissionPage:
    data = [
        Permission(id=permission.id, created_at=unix_seconds(permission.created_at), project_id=permission.project)
        for permission in permissions
    ]
    return PermissionPage(**id_page_fields(data, has_more=has_more))

"""The keys of a tenant, for its admins: /v1/keys."""

from __future__ import annotations

from fastapi import APIRouter, status
from pydantic import ConfigDict, Field

from api.authentication import Caller, CallerDep, requires
from api.ids import Id
from api.pages import WholeList
from api.services import ServicesDep
from shared.errors import Code, Forbidden
from shared.keys import Key, KeyName
from shared.tenancy import KeyLimits, Role, TenantName

router = APIRouter(prefix="/v1/keys", tags=["keys"], dependencies=[requires(Role.ADMIN)])


class CreateKey(KeyLimits):
    """A key to be made."""

    model_config = ConfigDict(extra="forbid")
    name: KeyName = Field(description="Whose key it is, e.g. alice or ci.")
    role: Role = Field(description="What it may do in its tenant.")
    tenant: TenantName | None = Field(
        None, description="The tenant that it belongs to; the caller's when null. Only the operator may name another."
    )


class ChangeLimits(KeyLimits):
    """Limits that a key shall have from now on. A field that is left out stays as it is; null is no limit."""

    model_config = ConfigDict(extra="forbid")


class CreatedKey(Key):
    """A new key. ``secret`` is shown this once."""

    secret: str


@router.post("", status_code=status.HTTP_201_CREATED)
def create_key(body: CreateKey, services: ServicesDep, caller: CallerDep) -> CreatedKey:
    """Make a key. Its secret is in this answer and nowhere else."""
    tenant = _tenant_of(body, caller)
    limits = KeyLimits.model_validate(body.model_dump(include=set(KeyLimits.model_fields)))
    key, secret = services.keys.create(body.name, tenant, body.role, limits)
    return CreatedKey(**key.model_dump(), secret=secret)


@router.get("")
def list_keys(services: ServicesDep, caller: CallerDep) -> WholeList[Key]:
    """The tenant's keys, oldest first, without their secrets; revoked ones too."""
    return WholeList(data=services.keys.all(caller.tenant))


@router.patch("/{key_id}")
def limit_key(key_id: Id, body: ChangeLimits, services: ServicesDep, caller: CallerDep) -> Key:
    """Change a key's limits. Its next requests have them, in every API process within a quarter of a second."""
    return services.keys.limit(key_id, body, caller.tenant)


@router.delete("/{key_id}")
def revoke_key(key_id: Id, services: ServicesDep, caller: CallerDep) -> Key:
    """Refuse a key from now on, in every API process within a quarter of a second. Repeating it changes nothing."""
    return services.keys.revoke(key_id, caller.tenant)


def _tenant_of(body: CreateKey, caller: Caller) -> TenantName:
    tenant = body.tenant or caller.tenant
    if tenant != caller.tenant and not caller.is_operator:
        raise Forbidden(
            Code.TENANT_FORBIDDEN,
            f"An admin of {caller.tenant!r} makes keys of that tenant only, not of {tenant!r}.",
            remedy="Leave `tenant` out.",
            param="tenant",
        )
    return tenant

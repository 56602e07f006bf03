"""API keys of a tenant, for its admins: /v1/keys."""

from __future__ import annotations

from fastapi import APIRouter, status
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StrictInt

from api.services import ServicesDep
from api.web.auth import BEARER, CallerDep, requires
from api.web.params import Id, WholeList
from shared.database.callers.key_records import Key, KeyChange, KeyName
from shared.database.callers.keys import DAY_SECONDS, LONGEST_OVERLAP_SECONDS
from shared.database.tenancy import KeyLimits, Role, TenantName
from shared.errors import Code, Forbidden

router = APIRouter(prefix="/v1/keys", tags=["keys"], dependencies=[requires(Role.ADMIN)])


class CreateKey(KeyLimits):
    """Request for a new API key."""

    model_config = ConfigDict(extra="forbid")
    name: KeyName = Field(description="Name of the person or program that uses the key, e.g. alice or ci.")
    role: Role = Field(description="Role of the key in its tenant.")
    tenant: TenantName | None = Field(
        None, description="The key's tenant; the caller's when null. Only an operator may name another."
    )
    expires_at: AwareDatetime | None = Field(None, description="Time from which the key is refused; null: never.")


class RotateKey(BaseModel):
    """Request for a new secret of a key."""

    model_config = ConfigDict(extra="forbid")
    overlap_seconds: StrictInt = Field(
        DAY_SECONDS,
        ge=0,
        le=LONGEST_OVERLAP_SECONDS,
        description="How long the previous secret is accepted next to the new one; 0: it ends immediately.",
    )


class CreatedKey(Key):
    """An API key with a new secret. ``secret`` is shown only here."""

    secret: str


@router.post("", status_code=status.HTTP_201_CREATED, dependencies=BEARER)
def create_key(body: CreateKey, services: ServicesDep, caller: CallerDep) -> CreatedKey:
    """Create an API key. This response is the only one that shows its secret."""
    tenant = body.tenant or caller.tenant
    if tenant != caller.tenant and not caller.is_operator:
        raise Forbidden(
            Code.TENANT_FORBIDDEN,
            f"An admin of {caller.tenant!r} can only create keys of that tenant, not of {tenant!r}.",
            remedy="Leave `tenant` out.",
            param="tenant",
        )
    limits = KeyLimits.model_validate(body.model_dump(include=set(KeyLimits.model_fields)))
    key, secret = services.keys.create(body.name, tenant, body.role, limits, body.expires_at)
    return CreatedKey(**key.model_dump(), secret=secret)


@router.get("")
def list_keys(services: ServicesDep, caller: CallerDep) -> WholeList[Key]:
    """The tenant's API keys, oldest first, without secrets, revoked ones included."""
    return WholeList(data=services.keys.all(caller.tenant))


@router.patch("/{key_id}", dependencies=BEARER)
def change_key(key_id: Id, body: KeyChange, services: ServicesDep, caller: CallerDep) -> Key:
    """Change a key's name, role, limits or expiry. It applies in every API process within a quarter of a second."""
    return services.keys.change(key_id, body, caller.tenant)


@router.post("/{key_id}/rotate", dependencies=BEARER)
def rotate_key(key_id: Id, body: RotateKey, services: ServicesDep, caller: CallerDep) -> CreatedKey:
    """Give a key a new secret; the previous one is still accepted for a while. This response is the only one that shows
    it.
    """
    key, secret = services.keys.rotate(key_id, body.overlap_seconds, caller.tenant)
    return CreatedKey(**key.model_dump(), secret=secret)


@router.delete("/{key_id}")
def revoke_key(key_id: Id, services: ServicesDep, caller: CallerDep) -> Key:
    """Revoke a key. Every API process refuses it within a quarter of a second. Repeating the request changes nothing."""
    return services.keys.revoke(key_id, caller.tenant)

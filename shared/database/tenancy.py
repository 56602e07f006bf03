"""Tenants, roles and limits: who may see what, who may change it, how much they may ask. Pure: no database, no HTTP.

A tenant is a team on one installation. ``shared`` is the installation's own: what belongs to it, everybody sees.
docs/tenants.md has the rules.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from shared.errors import Code, Forbidden

SHARED = "shared"
LARGEST_LIMIT = 1_000_000
TENANT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
TENANT_RULE = "1 to 63 of a-z, 0-9 and -, and not - first"
"""The pattern in words."""

BEFORE_TENANTS = "default"
"""What jobs had for an owner before there were tenants; no tenant may have the name."""


def _in_words(name: object) -> object:
    if isinstance(name, str) and not re.fullmatch(TENANT_PATTERN, name):
        raise ValueError(f"{name[:80]!r} is not {TENANT_RULE}")
    return name


def _not_reserved(name: str) -> str:
    if name == BEFORE_TENANTS:
        raise ValueError(f"{BEFORE_TENANTS!r} is reserved")
    return name


TenantName = Annotated[
    str, StringConstraints(pattern=TENANT_PATTERN), BeforeValidator(_in_words), AfterValidator(_not_reserved)
]


class Role(StrEnum):
    """What a key may do in its tenant; each role may do what the one before it may."""

    VIEWER = "viewer"
    """Look at everything of the tenant, and ask its models."""
    TRAINER = "trainer"
    """Also upload files, run jobs, move aliases, and look at token ids."""
    ADMIN = "admin"
    """Also delete models and manage the tenant's keys. An admin of ``shared`` may act in every tenant."""

    def includes(self, other: Role) -> bool:
        """Whether this role may do what the other may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


RIGHTS = {
    Role.VIEWER: "may look at everything there and ask its models",
    Role.TRAINER: "may look at everything there, ask its models, upload files, run jobs and move aliases",
    Role.ADMIN: "may do everything there, also delete models and manage its keys",
}


def describe_rights(role: Role, tenant: str) -> str:
    """What a role may do in a tenant, for people: ``viewer of acme: may look at everything there and ask its models``."""
    if (role, tenant) == (Role.ADMIN, SHARED):
        return f"{role} of {tenant}, the operator: may do everything in every tenant"
    return f"{role} of {tenant}: {RIGHTS[role]}"


class KeyLimits(BaseModel):
    """How much a key may ask; None is as much as it likes."""

    model_config = ConfigDict(frozen=True)
    requests_per_minute: int | None = Field(None, ge=1, le=LARGEST_LIMIT, description="Requests to models a minute.")
    concurrent_requests: int | None = Field(
        None, ge=1, le=LARGEST_LIMIT, description="Requests to models that are under way at once."
    )


UNLIMITED = KeyLimits()


def visible_to(tenant: str) -> tuple[str, ...]:
    """Tenants whose things a tenant sees, its own first: where two have the same name, the first one counts."""
    return (tenant,) if tenant == SHARED else (tenant, SHARED)


def check_owner(thing: str, owner: str, tenant: str) -> None:
    """Let a tenant change only what is its own.

    Args:
        thing: what would be changed, for the message, e.g. ``The file file-1``.
        owner: the tenant that it belongs to, one that ``tenant`` sees.
        tenant: who would change it.

    Raises:
        Forbidden: ``TENANT_FORBIDDEN``.
    """
    if owner != tenant:
        raise Forbidden(
            Code.TENANT_FORBIDDEN,
            f"{thing} belongs to the tenant {owner!r}; {tenant!r} may look at it and use it, but not change it.",
            remedy=f"Use a key of the tenant {owner!r}.",
        )

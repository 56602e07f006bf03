"""Tenants, roles and limits: which objects a key may see, change and request. Pure: no database, no HTTP.

A tenant is a team on one installation. ``shared`` is the operator's tenant; every tenant sees its objects.
docs/tenants.md has the rules.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StringConstraints

from shared.errors import Code, Forbidden

SHARED = "shared"
# Both fit into the columns, which are 32-bit integers.
LARGEST_LIMIT, MOST_TOKENS = 1_000_000, 1_000_000_000
TENANT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
TENANT_RULE = "1 to 63 characters of a-z, 0-9 and -, not beginning with -"
"""Description of the pattern, for error messages."""

BEFORE_TENANTS = "default"
"""Owner of jobs older than tenants; no tenant may have this name."""


def _check_tenant_name(name: object) -> object:
    if isinstance(name, str) and not re.fullmatch(TENANT_PATTERN, name):
        raise ValueError(f"{name[:80]!r} is not {TENANT_RULE}")
    if name == BEFORE_TENANTS:
        raise ValueError(f"{BEFORE_TENANTS!r} is reserved")
    return name


TenantName = Annotated[str, StringConstraints(pattern=TENANT_PATTERN), BeforeValidator(_check_tenant_name)]


class Role(StrEnum):
    """Permissions of a key in its tenant; each role includes the one before it."""

    VIEWER = "viewer"
    """Read everything of the tenant, and send requests to its models."""
    TRAINER = "trainer"
    """Also upload files, run jobs, move aliases, and read token ids."""
    ADMIN = "admin"
    """Also delete models and manage the tenant's keys. An admin of ``shared`` may act in every tenant."""

    def includes(self, other: Role) -> bool:
        """Return whether this role has all rights of the other."""
        order = list(Role)
        return order.index(self) >= order.index(other)


RIGHTS = {
    Role.VIEWER: "may read everything there and send requests to its models",
    Role.TRAINER: "may read everything there, send requests to its models, upload files, run jobs and move aliases",
    Role.ADMIN: "may do everything there, also delete models and manage its keys",
}


def describe_rights(role: Role, tenant: str) -> str:
    """Describe a role's rights in a tenant, as a sentence: ``viewer of acme: may read everything there and …``."""
    if (role, tenant) == (Role.ADMIN, SHARED):
        return f"{role} of {tenant}, the operator: may do everything in every tenant"
    return f"{role} of {tenant}: {RIGHTS[role]}"


class KeyLimits(BaseModel):
    """Limits of a key's requests to models; None is unlimited."""

    model_config = ConfigDict(frozen=True)
    requests_per_minute: StrictInt | None = Field(
        None, ge=1, le=LARGEST_LIMIT, description="Model requests per minute."
    )
    concurrent_requests: StrictInt | None = Field(
        None, ge=1, le=LARGEST_LIMIT, description="Requests to models that are in flight at once."
    )
    tokens_per_minute: StrictInt | None = Field(
        None,
        ge=1,
        le=MOST_TOKENS,
        description="Tokens of prompts and answers per minute, counted when an answer has ended.",
    )


UNLIMITED = KeyLimits()


class FileQuota(NamedTuple):
    """Largest number of files that a tenant may keep, and their largest total size in bytes; None means unlimited."""

    files: int | None = None
    bytes: int | None = None


NO_QUOTA = FileQuota()


def visible_to(tenant: str) -> tuple[str, ...]:
    """Return the tenants whose objects a tenant sees, its own first: if several objects have the same name, the first
    tenant's is found.
    """
    return (tenant,) if tenant == SHARED else (tenant, SHARED)


def check_owner(thing: str, owner: str, tenant: str) -> None:
    """Refuse a change of another tenant's object.

    Args:
        thing: the object to change, for the message, e.g. ``The file file-1``.
        owner: the tenant that it belongs to, one that ``tenant`` sees.
        tenant: the tenant that would change it.

    Raises:
        Forbidden: ``TENANT_FORBIDDEN``.
    """
    if owner != tenant:
        raise Forbidden(
            Code.TENANT_FORBIDDEN,
            f"{thing} belongs to the tenant {owner!r}; {tenant!r} may read and use it, but not change it.",
            remedy=f"Use a key of the tenant {owner!r}.",
        )

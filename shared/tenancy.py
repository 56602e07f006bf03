"""Tenants and roles: who may see what, and who may change it. Pure: no database, no HTTP.

A tenant is a team on one installation. ``shared`` is the installation's own: what belongs to it, everybody sees.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

SHARED = "shared"
TENANT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"

TenantName = Annotated[str, StringConstraints(pattern=TENANT_PATTERN)]


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


def visible_to(tenant: str) -> tuple[str, ...]:
    """Tenants whose things a tenant sees, its own first: where two have the same name, the first one counts."""
    return (tenant,) if tenant == SHARED else (tenant, SHARED)

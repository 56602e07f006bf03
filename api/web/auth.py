"""Authentication and authorisation: every route except health requires ``Authorization: Bearer <key>``.

``CallerDep`` is the key and the tenant that a request acts for; ``requires(Role.TRAINER)`` among a route's dependencies
limits who may use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request, params
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPBearer

from api.inference.lookup_cache import AUTHENTICATED, Authenticated
from api.services import ServicesDep
from shared.database.callers.key_records import Key
from shared.database.tenancy import SHARED, Role, TenantName
from shared.errors import Code, Forbidden, NotFound

_bearer = HTTPBearer(auto_error=False, description="A key created with `mens keys create NAME`.")


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request: its key, the tenant that it acts for, and its role there."""

    key: Key
    tenant: str
    role: Role

    @property
    def is_operator(self) -> bool:
        """Return true if the key is an operator's: an admin of ``shared``, for any tenant that it acts for."""
        return self.key.tenant == SHARED and self.key.role is Role.ADMIN


async def require_key(request: Request, _: Annotated[object, Depends(_bearer)]) -> Key:
    """Return the caller's key, which the request guard has authenticated (`api/web/request_guard.py`)."""
    authenticated: Authenticated = request.scope[AUTHENTICATED]
    return authenticated.key


KeyDep = Annotated[Key, Depends(require_key)]
TenantHeader = Annotated[
    TenantName | None,
    Header(
        alias="X-Mens-Tenant",
        description="Tenant to act for instead of the key's own; only an admin of `shared` may name another.",
    ),
]


async def require_caller(services: ServicesDep, key: KeyDep, tenant: TenantHeader = None) -> Caller:
    """Return the caller, acting for the key's tenant or the named one.

    Raises:
        Forbidden: ``TENANT_FORBIDDEN``: the key may not act for that tenant.
        NotFound: ``TENANT_NOT_FOUND``: the tenant never had a key; accepting a misspelt name would create a tenant that
            no key can see.
    """
    caller = Caller(key, tenant or key.tenant, key.role)
    if caller.tenant != key.tenant and not caller.is_operator:
        raise Forbidden(
            Code.TENANT_FORBIDDEN,
            f"The key {key.name!r} belongs to the tenant {key.tenant!r} and may not act for {tenant!r}.",
            remedy="Leave X-Mens-Tenant out, or use a key of that tenant.",
            param="X-Mens-Tenant",
        )
    if caller.tenant not in (key.tenant, SHARED) and not await run_in_threadpool(services.keys.has_any, caller.tenant):
        raise NotFound(
            Code.TENANT_NOT_FOUND,
            f"The tenant {caller.tenant!r} does not exist.",
            remedy=(
                "Check X-Mens-Tenant; a tenant is created with its first key: `mens keys create NAME --tenant "
                f"{caller.tenant}`."
            ),
            param="X-Mens-Tenant",
        )
    return caller


CallerDep = Annotated[Caller, Depends(require_caller)]


def requires(role: Role) -> params.Depends:
    """Return a dependency for routes that require a role, or one that includes it; 403 for other callers."""

    async def has_role(caller: CallerDep) -> None:
        check_role(caller, role)

    return params.Depends(has_role)


def check_role(caller: Caller, role: Role) -> None:
    """Check that the caller has a role.

    Raises:
        Forbidden: ``ROLE_INSUFFICIENT``.
    """
    if not caller.role.includes(role):
        raise Forbidden(
            Code.ROLE_INSUFFICIENT,
            f"This request needs a key with the role {str(role)!r}; {caller.key.name!r} is a {caller.role}.",
            remedy=f"Ask an admin of the tenant {caller.tenant!r} for a key with that role.",
        )


TRAINER = [requires(Role.TRAINER)]
"""Dependencies of routes that require a trainer or an admin."""


def require_bearer(request: Request) -> None:
    """Require a key, not a sign-in: a script in the console's page could otherwise steal a secret that outlives the sign-in.

    Raises:
        Forbidden: ``SIGN_IN_NEEDS_KEY``.
    """
    authenticated: Authenticated = request.scope[AUTHENTICATED]
    if not isinstance(authenticated.secret, str):
        raise Forbidden(
            Code.SIGN_IN_NEEDS_KEY,
            "Keys and codes can be created and changed only with a key, not in a signed-in session.",
            remedy="Use `mens keys` or `mens open`, or send `Authorization: Bearer KEY`.",
        )


BEARER = [Depends(require_bearer)]
"""Dependencies of routes that make or change secrets, which refuse sign-ins."""


async def require_operator(caller: CallerDep) -> None:
    """Require an operator.

    Raises:
        Forbidden: ``ROLE_INSUFFICIENT``.
    """
    if not caller.is_operator:
        raise Forbidden(
            Code.ROLE_INSUFFICIENT,
            f"This request needs an operator: an admin of the tenant {SHARED!r}.",
            remedy="Ask an operator of this installation.",
        )

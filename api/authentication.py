"""Who is calling: every route but health wants ``Authorization: Bearer <key>``."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.services import ServicesDep
from shared.errors import Code, Unauthenticated
from shared.registry import Key

_bearer = HTTPBearer(auto_error=False, description="A key made with `mens keys create NAME`.")


def require_key(
    services: ServicesDep, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Key:
    """The caller's key.

    Raises:
        Unauthenticated: ``KEY_MISSING`` or ``KEY_INVALID``.
    """
    if credentials is None or not credentials.credentials:
        raise Unauthenticated(
            Code.KEY_MISSING,
            "The request carries no API key.",
            remedy="Send `Authorization: Bearer KEY`; make one with `mens keys create NAME`.",
        )
    return services.registry.authenticate(credentials.credentials)


KeyDep = Annotated[Key, Depends(require_key)]

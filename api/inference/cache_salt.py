"""Cache salts, which keep tenants apart in vLLM's prefix cache.

Without a salt, the time to the first token would reveal to one tenant whether another had sent the same prompt before.
"""

from __future__ import annotations

import hmac
import json
from functools import lru_cache
from typing import Any

from shared.errors import Code, InvalidRequest

FIELD = "cache_salt"
"""vLLM's field: a prompt's cached blocks are keyed by it, in addition to their tokens."""


def with_cache_salt(body: dict[str, Any], secret: str, tenant: str) -> dict[str, Any]:
    """Return the request with its tenant's salt. The caller's own salt is mixed into it, and never used alone.

    Args:
        secret: the installation's secret, the same in every API process.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: the caller's own salt is not a string.
    """
    own = body.get(FIELD)
    if own is not None and not (isinstance(own, str) and own):
        raise InvalidRequest(Code.REQUEST_INVALID, f"`{FIELD}` must be a non-empty string.", param=FIELD)
    salt = _tenant_salt(secret, tenant)
    return {**body, FIELD: salt + _digest(secret, tenant, own) if own else salt}


@lru_cache(maxsize=1024)
def _tenant_salt(secret: str, tenant: str) -> str:
    # Only tenants' salts are cached, because callers can send any number of salts.
    return _digest(secret, tenant, None)


def _digest(secret: str, tenant: str, own: str | None) -> str:
    """Return ``TENANT_SALT_CHARS`` hexadecimal digits."""
    # A list, so that a tenant's name followed by a salt cannot equal another tenant's name.
    message = json.dumps([tenant, own]).encode()
    return hmac.digest(secret.encode(), message, "sha256").hex()

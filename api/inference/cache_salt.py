"""Keeps the tenants' prompts apart in vLLM's prefix cache: whose prompt was asked before, nobody else can tell by the time."""

from __future__ import annotations

import hmac
import json
from functools import lru_cache
from typing import Any

from shared.errors import Code, InvalidRequest

FIELD = "cache_salt"
"""vLLM's name for what a prompt's cached blocks are keyed by, besides their tokens."""


def salted(body: dict[str, Any], secret: str, tenant: str) -> dict[str, Any]:
    """The request with its tenant's salt, in which the caller's own takes part but never stands alone.

    Args:
        secret: of the installation, the same in every API process.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: the caller's own salt is no text.
    """
    own = body.get(FIELD)
    if own is not None and not (isinstance(own, str) and own):
        raise InvalidRequest(Code.REQUEST_INVALID, f"`{FIELD}` must be a text that is not empty.", param=FIELD)
    salt = _salt(secret, tenant, own) if own else _own_salt(secret, tenant)
    return {**body, FIELD: salt}


@lru_cache(maxsize=1024)
def _own_salt(secret: str, tenant: str) -> str:
    """Of a tenant by itself. Nothing that a caller makes up is kept."""
    return _salt(secret, tenant, None)


def _salt(secret: str, tenant: str, own: str | None) -> str:
    parts = json.dumps([tenant, own]).encode()  # a list, so that no tenant's name and salt read as another's
    return hmac.digest(secret.encode(), parts, "sha256").hex()

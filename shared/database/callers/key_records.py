"""A key without its secret, the fields that can be changed, and the rule for its name."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field, StringConstraints

from shared.database.records import Value
from shared.database.tenancy import KeyLimits, Role, TenantName

KEY_NAME_PATTERN = r"^[^\x00-\x1f\x7f]{1,64}$"
KEY_NAME_RULE = "1 to 64 characters in one line"
"""Description of the pattern, for error messages."""


def _check_key_name(name: object) -> object:
    if isinstance(name, str) and not re.fullmatch(KEY_NAME_PATTERN, name):
        raise ValueError(f"{name[:80]!r} is not {KEY_NAME_RULE}")
    return name


KeyName = Annotated[str, StringConstraints(pattern=KEY_NAME_PATTERN), BeforeValidator(_check_key_name)]


class Key(Value):
    """An API key, without its secret."""

    id: str
    name: str
    tenant: TenantName
    role: Role
    requests_per_minute: int | None
    concurrent_requests: int | None
    tokens_per_minute: int | None = None
    created_at: datetime
    revoked_at: datetime | None
    expires_at: datetime | None = Field(None, description="Time from which the key is refused; null: never.")
    previous_secret_until: datetime | None = Field(
        None,
        description=(
            "Until then the secret before the last rotation is accepted too; null: only the current secret is accepted."
        ),
    )
    last_used_at: datetime | None = Field(None, description="Time of its last request, accurate to about a minute.")
    subject: str | None = Field(
        None, description="Name at the identity provider of the person who signs in there; null: a key with a secret."
    )


class KeyChange(KeyLimits):
    """A change of a key. Omitted fields stay; null removes a limit or the expiry, and leaves name and role as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: KeyName | None = Field(None, description="Name of the person or program that uses the key.")
    role: Role | None = Field(None, description="Role of the key in its tenant.")
    expires_at: AwareDatetime | None = Field(None, description="Time from which the key is refused; null: never.")

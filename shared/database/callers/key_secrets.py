"""Secrets of keys: created once, stored as hashes, accepted until the key or the secret itself expires."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from shared.database.callers.key_records import Key
from shared.database.tables.keys import KeyRow
from shared.errors import Code, Unauthenticated

KEY_PREFIX = "mens-"


class AcceptedSecret(NamedTuple):
    """A key, found by one of its secrets, and when the secret expires; None: it is valid until the key is changed.

    Attributes:
        sign_in_id: the sign-in, if the secret consists of its two halves (`shared/database/callers/sign_ins.py`).
        sign_in_ends: when the sign-in ends even if it is used.
    """

    key: Key
    until: datetime | None
    sign_in_id: str | None = None
    sign_in_ends: datetime | None = None


def new_secret() -> str:
    """Return a new secret of a key."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """Return the hash that is stored for a secret, in hex."""
    # Secrets are 256 random bits, so no dictionary helps to guess one and a plain hash is enough.
    return hashlib.sha256(secret.encode()).hexdigest()


def accepted(session: Session, secret: str, now: datetime, *, lock: bool = False) -> AcceptedSecret:
    """Return the key that a secret belongs to and when the secret expires, inside the caller's transaction.

    Args:
        session: the transaction's session.
        secret: the key's secret.
        now: the time by the database's clock.
        lock: whether to lock the key's row until the transaction ends.

    Raises:
        Unauthenticated: ``KEY_INVALID``, ``KEY_EXPIRED``.
    """
    digest = hash_secret(secret)
    query = select(KeyRow).where(or_(KeyRow.secret_sha256 == digest, KeyRow.previous_secret_sha256 == digest))
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None or row.revoked_at is not None:
        # The message begins with OpenAI's words, because litellm reports a 401 without them as a bad request.
        raise Unauthenticated(
            Code.KEY_INVALID,
            "Incorrect API key provided: it is unknown or revoked.",
            remedy="Create a key with `mens keys create NAME`.",
        )
    key = Key.model_validate(row)
    ends = [key.expires_at, None if row.secret_sha256 == digest else key.previous_secret_until]
    until = min((end for end in ends if end), default=None)
    if until and now >= until:
        raise expired(key, until)
    return AcceptedSecret(key, until)


def expired(key: Key, until: datetime) -> Unauthenticated:
    """Return the error for a key, or a replaced secret, that expired at ``until``."""
    # The messages begin with OpenAI's words, as above.
    if until == key.expires_at:
        message = f"Incorrect API key provided: the key {key.name!r} expired at {until:%Y-%m-%dT%H:%M:%SZ}."
        remedy = (
            f"An admin can let it live longer: `mens keys change {key.id} --expires 90d`, or PATCH /v1/keys/{key.id}."
        )
    else:
        message = (
            f"Incorrect API key provided: this secret of the key {key.name!r} was replaced, and has not been accepted since "
            f"{until:%Y-%m-%dT%H:%M:%SZ}."
        )
        remedy = "Ask the person who rotated the key for its new secret."
    return Unauthenticated(Code.KEY_EXPIRED, message, remedy=remedy)

"""API keys: who they belong to, what they may do, and how much of it. Secrets are stored as hashes."""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime
from typing import Annotated

from pydantic import BeforeValidator, StringConstraints
from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.changes import bump
from shared.db import Database, whole_milliseconds
from shared.errors import Code, Conflict, InvalidRequest, NotFound, Unauthenticated
from shared.job import Value, new_id
from shared.tables import KeyRow
from shared.tenancy import BEFORE_TENANTS, SHARED, TENANT_PATTERN, TENANT_RULE, UNLIMITED, KeyLimits, Role, TenantName

KEY_PREFIX = "mens-"
KEY_NAME_PATTERN = r"^[^\x00-\x1f\x7f]{1,64}$"
KEY_NAME_RULE = "1 to 64 characters in one line"
"""The pattern in words."""


def _in_words(name: object) -> object:
    if isinstance(name, str) and not re.fullmatch(KEY_NAME_PATTERN, name):
        raise ValueError(f"{name[:80]!r} is not {KEY_NAME_RULE}")
    return name


KeyName = Annotated[str, StringConstraints(pattern=KEY_NAME_PATTERN), BeforeValidator(_in_words)]


class Key(Value):
    """An API key, without its secret."""

    id: str
    name: str
    tenant: TenantName
    role: Role
    requests_per_minute: int | None
    concurrent_requests: int | None
    created_at: datetime
    revoked_at: datetime | None


class Keys:
    """Verbs of keys; each is one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def create(
        self, name: KeyName, tenant: TenantName = SHARED, role: Role = Role.ADMIN, limits: KeyLimits = UNLIMITED
    ) -> tuple[Key, str]:
        """Make an API key.

        Returns:
            the key's record, and the secret, which is stored only as a hash and can never be shown again.

        Raises:
            InvalidRequest: ``NAME_INVALID``. Conflict: ``KEY_NAME_TAKEN``: the tenant has a key of that name, not revoked.
        """
        _check_name("name", name, KEY_NAME_PATTERN, KEY_NAME_RULE)
        _check_name("tenant", tenant, TENANT_PATTERN, TENANT_RULE)
        _check_name(
            "tenant", tenant, f"(?!{BEFORE_TENANTS}$).*", f"another name than {BEFORE_TENANTS!r}, which is reserved"
        )
        secret = KEY_PREFIX + secrets.token_urlsafe(32)
        with self._db.write() as session:
            bump(session, "keys")  # first, so that one waits here for another that makes a key, and then sees its name
            _check_free(session, name, tenant)
            row = KeyRow(
                id=new_id("key"),
                name=name,
                tenant=tenant,
                role=str(role),
                secret_sha256=_hash(secret),
                created_at=whole_milliseconds(datetime.now(UTC)),
                **limits.model_dump(),
            )
            session.add(row)
            session.flush()
            return Key.model_validate(row), secret

    def all(self, tenant: TenantName | None = None) -> list[Key]:
        """A tenant's keys, or everybody's, oldest first; revoked ones too."""
        query = select(KeyRow).order_by(KeyRow.id)
        if tenant is not None:
            query = query.where(KeyRow.tenant == tenant)
        with self._db.read() as session:
            return [Key.model_validate(row) for row in session.scalars(query)]

    def get(self, key_id: str, tenant: TenantName) -> Key:
        """A tenant's key, a revoked one too.

        Raises:
            NotFound: ``KEY_NOT_FOUND``.
        """
        with self._db.read() as session:
            return Key.model_validate(_row(session, key_id, tenant))

    def has_any(self, tenant: TenantName) -> bool:
        """Whether a tenant ever had a key."""
        with self._db.read() as session:
            return session.scalar(select(KeyRow.id).where(KeyRow.tenant == tenant).limit(1)) is not None

    def limit(self, key_id: str, limits: KeyLimits, tenant: TenantName | None = None) -> Key:
        """Change how much a key may ask, from its next request on.

        Args:
            limits: only the fields that were set change (``model_fields_set``); None is no limit any more.
            tenant: whose key it must be; None for anybody's.

        Raises:
            NotFound: ``KEY_NOT_FOUND``. Conflict: ``KEY_REVOKED``.
        """
        with self._db.write() as session:
            row = _locked(session, key_id, tenant)
            if row.revoked_at is not None:
                raise Conflict(
                    Code.KEY_REVOKED,
                    f"The key {key_id!r} ({row.name}) is revoked, for good.",
                    remedy="Make another: POST /v1/keys or `mens keys create NAME`.",
                    param="key_id",
                )
            for field, limit in limits.model_dump(exclude_unset=True).items():
                setattr(row, field, limit)
            if session.is_modified(row):
                session.flush()
                bump(session, "keys")
            return Key.model_validate(row)

    def revoke(self, key_id: str, tenant: TenantName | None = None) -> Key:
        """Refuse a key from now on. One that was revoked before keeps that time.

        Args:
            tenant: whose key it must be; None for anybody's.

        Raises:
            NotFound: ``KEY_NOT_FOUND``.
        """
        with self._db.write() as session:
            row = _locked(session, key_id, tenant)
            if row.revoked_at is None:
                row.revoked_at = whole_milliseconds(datetime.now(UTC))
                session.flush()
                bump(session, "keys")
            return Key.model_validate(row)

    def authenticate(self, secret: str) -> Key:
        """The key of a secret.

        Raises:
            Unauthenticated: ``KEY_INVALID``: unknown or revoked.
        """
        with self._db.read() as session:
            row = session.scalar(select(KeyRow).where(KeyRow.secret_sha256 == _hash(secret)))
            if row is None or row.revoked_at is not None:
                raise Unauthenticated(
                    Code.KEY_INVALID,
                    "The API key is not known, or it was revoked.",
                    remedy="Make one with `mens keys create NAME`.",
                )
            return Key.model_validate(row)


def _check_name(param: str, given: str, pattern: str, rule: str) -> None:
    if not re.fullmatch(pattern, given):
        raise InvalidRequest(Code.NAME_INVALID, f"The {param} is {given!r}; it must be {rule}.", param=param)


def _check_free(session: Session, name: str, tenant: str) -> None:
    found = select(KeyRow.id).where(KeyRow.tenant == tenant, KeyRow.name == name, KeyRow.revoked_at.is_(None))
    if key_id := session.scalar(found.limit(1)):
        raise Conflict(
            Code.KEY_NAME_TAKEN,
            f"The tenant {tenant!r} has a key {name!r} already, {key_id}.",
            remedy=f"Choose another name, or revoke that key first: `mens keys revoke {key_id}`.",
            param="name",
            details={"key_id": key_id},
        )


def _locked(session: Session, key_id: str, tenant: str | None) -> KeyRow:
    """A key's row, which nobody else changes until the transaction has ended; raises as :func:`_row` does."""
    return _row(session, key_id, tenant, for_update=True)


def _row(session: Session, key_id: str, tenant: str | None, *, for_update: bool = False) -> KeyRow:
    """A key's row.

    Raises:
        NotFound: ``KEY_NOT_FOUND``: there is none, or it is not the tenant's.
    """
    row = session.get(KeyRow, key_id, with_for_update=for_update)
    if row is None or tenant not in (None, row.tenant):
        raise NotFound(
            Code.KEY_NOT_FOUND,
            f"There is no key {key_id!r}.",
            remedy="List them: GET /v1/keys or `mens keys list`.",
            param="key_id",
        )
    return row


def _hash(secret: str) -> str:
    """Keys are 256 random bits, so a plain hash is enough: there is no dictionary to guess from."""
    return hashlib.sha256(secret.encode()).hexdigest()

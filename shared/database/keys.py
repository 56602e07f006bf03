"""API keys: their tenant, role and limits. Secrets are stored as hashes."""

from __future__ import annotations

import hashlib
import re
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

from pydantic import BeforeValidator, StringConstraints
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from shared.database.change_counter import bump
from shared.database.connection import Database, whole_milliseconds
from shared.database.job_states import JobState
from shared.database.records import Value, new_id
from shared.database.tables import JobRow, KeyRow
from shared.database.tenancy import (
    BEFORE_TENANTS,
    SHARED,
    TENANT_PATTERN,
    TENANT_RULE,
    UNLIMITED,
    KeyLimits,
    Role,
    TenantName,
)
from shared.errors import Code, Conflict, InvalidRequest, NotFound, Unauthenticated

KEY_PREFIX = "mens-"
KEY_NAME_PATTERN = r"^[^\x00-\x1f\x7f]{1,64}$"
KEY_NAME_RULE = "1 to 64 characters in one line"
"""The pattern, for error messages."""


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


class Keys:
    """Verbs of keys; each is one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def create(
        self, name: KeyName, tenant: TenantName = SHARED, role: Role = Role.ADMIN, limits: KeyLimits = UNLIMITED
    ) -> tuple[Key, str]:
        """Create an API key.

        Returns:
            the key's record, and the secret, which is stored only as a hash and can never be shown again.

        Raises:
            InvalidRequest: ``NAME_INVALID``. Conflict: ``KEY_NAME_TAKEN``: the tenant has an unrevoked key of that name.
        """
        _check_name("name", name, KEY_NAME_PATTERN, KEY_NAME_RULE)
        _check_name("tenant", tenant, TENANT_PATTERN, TENANT_RULE)
        _check_name(
            "tenant", tenant, f"(?!{BEFORE_TENANTS}$).*", f"another name than {BEFORE_TENANTS!r}, which is reserved"
        )
        secret = KEY_PREFIX + secrets.token_urlsafe(32)
        with self._db.write() as session:
            # First, so that a transaction waits here for another that creates a key, and then finds its name.
            bump(session, "keys")
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

    def revoke_abandoned(self) -> list[str]:
        """Revoke the keys of attempts that have ended without doing so: their worker died. Returns the keys' ids."""
        ended = or_(JobRow.state != JobState.RUNNING, JobRow.attempt != KeyRow.attempt)
        query = select(KeyRow).join(JobRow, JobRow.id == KeyRow.job_id).where(KeyRow.revoked_at.is_(None), ended)
        with self._db.read() as session:
            found = [row.id for row in session.scalars(query)]
        for key_id in found:
            with suppress(NotFound):  # its worker has done it meanwhile
                self.revoke(key_id)
        return found

    def all(self, tenant: TenantName | None = None) -> list[Key]:
        """A tenant's keys, or those of all tenants, oldest first; revoked ones too, but for those of attempts at jobs."""
        query = select(KeyRow).where(or_(KeyRow.job_id.is_(None), KeyRow.revoked_at.is_(None))).order_by(KeyRow.id)
        if tenant is not None:
            query = query.where(KeyRow.tenant == tenant)
        with self._db.read() as session:
            return [Key.model_validate(row) for row in session.scalars(query)]

    def get(self, key_id: str, tenant: TenantName) -> Key:
        """A tenant's key, revoked or not.

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
        """Change a key's limits, from its next request on.

        Args:
            limits: only the fields that were set change (``model_fields_set``); None removes a limit.
            tenant: the tenant that the key must belong to; None: any.

        Raises:
            NotFound: ``KEY_NOT_FOUND``. Conflict: ``KEY_REVOKED``.
        """
        with self._db.write() as session:
            row = _row(session, key_id, tenant, lock=True)
            if row.revoked_at is not None:
                raise Conflict(
                    Code.KEY_REVOKED,
                    f"The key {key_id!r} ({row.name}) is revoked for good.",
                    remedy="Create another one: POST /v1/keys or `mens keys create NAME`.",
                    param="key_id",
                )
            for field, limit in limits.model_dump(exclude_unset=True).items():
                setattr(row, field, limit)
            if session.is_modified(row):
                session.flush()
                bump(session, "keys")
            return Key.model_validate(row)

    def revoke(self, key_id: str, tenant: TenantName | None = None) -> Key:
        """Refuse a key from now on. Revoking it again changes nothing. Of an attempt's key, which nobody made, no record is kept.

        Args:
            tenant: the tenant that the key must belong to; None: any.

        Raises:
            NotFound: ``KEY_NOT_FOUND``.
        """
        with self._db.write() as session:
            row = _row(session, key_id, tenant, lock=True)
            if row.revoked_at is None:
                row.revoked_at = whole_milliseconds(datetime.now(UTC))
                session.flush()
                bump(session, "keys")
            revoked = Key.model_validate(row)
            if row.job_id is not None:
                session.delete(row)
            return revoked

    def authenticate(self, secret: str) -> Key:
        """The key of a secret.

        Raises:
            Unauthenticated: ``KEY_INVALID``: unknown or revoked.
        """
        with self._db.read() as session:
            row = session.scalar(select(KeyRow).where(KeyRow.secret_sha256 == _hash(secret)))
            if row is None or row.revoked_at is not None:
                # It begins with OpenAI's words: litellm takes a 401 without them for a bad request.
                raise Unauthenticated(
                    Code.KEY_INVALID,
                    "Incorrect API key provided: it is not known, or it was revoked.",
                    remedy="Make one with `mens keys create NAME`.",
                )
            return Key.model_validate(row)


def add_attempt_key(session: Session, job: JobRow, role: Role) -> tuple[Key, str]:
    """Add a key of the job's tenant that its attempt works with, in a transaction that holds the job's row.

    It is revoked by the attempt, or by :meth:`Keys.revoke_abandoned` when that has ended.

    Returns:
        the key's record, and the secret.
    """
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    row = KeyRow(
        id=new_id("key"),
        name=f"{job.id}, attempt {job.attempt}",
        tenant=job.tenant,
        role=str(role),
        secret_sha256=_hash(secret),
        created_at=whole_milliseconds(datetime.now(UTC)),
        job_id=job.id,
        attempt=job.attempt,
    )
    session.add(row)
    session.flush()
    bump(session, "keys")
    return Key.model_validate(row), secret


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


def _row(session: Session, key_id: str, tenant: str | None, *, lock: bool = False) -> KeyRow:
    """A key's row; ``lock`` holds it until the transaction ends.

    Raises:
        NotFound: ``KEY_NOT_FOUND``: there is none, or it is another tenant's.
    """
    row = session.get(KeyRow, key_id, with_for_update=lock)
    if row is None or tenant not in (None, row.tenant):
        raise NotFound(
            Code.KEY_NOT_FOUND,
            f"There is no key {key_id!r}.",
            remedy="List them: GET /v1/keys or `mens keys list`.",
            param="key_id",
        )
    return row


def _hash(secret: str) -> str:
    # Secrets are 256 random bits, so no dictionary helps to guess one and a plain hash is enough.
    return hashlib.sha256(secret.encode()).hexdigest()

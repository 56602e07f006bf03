"""API keys: their tenant, role, limits and expiry, and the rotation of their secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from shared.database.callers.key_records import KEY_NAME_PATTERN, KEY_NAME_RULE, Key, KeyChange, KeyName
from shared.database.callers.key_secrets import AcceptedSecret, accepted, hash_secret, new_secret
from shared.database.callers.people import refuse_person
from shared.database.change_counter import bump
from shared.database.connection import Database, whole_milliseconds
from shared.database.job_states import JobState
from shared.database.records import new_id
from shared.database.tables.jobs import JobRow
from shared.database.tables.keys import KeyRow, SignInCodeRow, SignInRow
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
from shared.errors import Code, Conflict, InvalidRequest, NotFound

DAY_SECONDS = 86_400
LONGEST_OVERLAP_SECONDS = 90 * DAY_SECONDS


class Keys:
    """Operations on keys. Each change of a key runs in one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def create(
        self,
        name: KeyName,
        tenant: TenantName = SHARED,
        role: Role = Role.ADMIN,
        limits: KeyLimits = UNLIMITED,
        expires_at: datetime | None = None,
    ) -> tuple[Key, str]:
        """Create an API key.

        Returns:
            the key's record, and the secret, which is stored only as a hash and can never be shown again.

        Raises:
            InvalidRequest: ``NAME_INVALID``, ``KEY_EXPIRY_INVALID``.
            Conflict: ``KEY_NAME_TAKEN``: the tenant has an unrevoked key of that name.
        """
        _check_name("name", name, KEY_NAME_PATTERN, KEY_NAME_RULE)
        _check_name("tenant", tenant, TENANT_PATTERN, TENANT_RULE)
        _check_name(
            "tenant", tenant, f"(?!{BEFORE_TENANTS}$).*", f"a name other than {BEFORE_TENANTS!r}, which is reserved"
        )
        secret = new_secret()
        with self._db.write() as session:
            # Locked first, so that a transaction waits here for another one that creates a key, and then finds its
            # name.
            bump(session, "keys")
            _check_free(session, name, tenant)
            expires_at = _checked_expiry(expires_at, self._db.now(session)) if expires_at else None
            row = KeyRow(
                id=new_id("key"),
                name=name,
                tenant=tenant,
                role=str(role),
                secret_sha256=hash_secret(secret),
                created_at=whole_milliseconds(datetime.now(UTC)),
                expires_at=expires_at,
                **limits.model_dump(),
            )
            session.add(row)
            session.flush()
            return Key.model_validate(row), secret

    def revoke_abandoned(self) -> list[str]:
        """Revoke the keys of ended attempts whose worker died before revoking them. Returns the keys' ids."""
        ended = or_(JobRow.state != JobState.RUNNING, JobRow.attempt != KeyRow.attempt)
        query = select(KeyRow).join(JobRow, JobRow.id == KeyRow.job_id).where(KeyRow.revoked_at.is_(None), ended)
        with self._db.read() as session:
            key_ids = [row.id for row in session.scalars(query)]
        for key_id in key_ids:
            with suppress(NotFound):  # its worker has done it meanwhile
                self.revoke(key_id)
        return key_ids

    def all(self, tenant: TenantName | None = None) -> list[Key]:
        """Return the keys of one tenant or of all tenants, oldest first; including revoked keys, but not those of
        attempts at jobs.
        """
        with self._db.read() as session:
            return tenant_keys(session, tenant)

    def get(self, key_id: str, tenant: TenantName) -> Key:
        """Return a tenant's key, revoked or not.

        Raises:
            NotFound: ``KEY_NOT_FOUND``.
        """
        with self._db.read() as session:
            return Key.model_validate(_row(session, key_id, tenant))

    def has_any(self, tenant: TenantName) -> bool:
        """Return whether a tenant ever had a key."""
        with self._db.read() as session:
            return session.scalar(select(KeyRow.id).where(KeyRow.tenant == tenant).limit(1)) is not None

    def change(self, key_id: str, change: KeyChange, tenant: TenantName | None = None) -> Key:
        """Change a key's name, role, limits or expiry, from its next request on. An expired key is valid again with a
        later expiry.

        Args:
            change: only the fields that were set count (``model_fields_set``).
            tenant: the tenant that the key must belong to; None: any.

        Raises:
            NotFound: ``KEY_NOT_FOUND``.
            Conflict: ``KEY_REVOKED``, ``KEY_NAME_TAKEN``.
            InvalidRequest: ``KEY_EXPIRY_INVALID``.
        """
        fields = change.model_dump(exclude_unset=True)
        fields = {field: value for field, value in fields.items() if value is not None or field not in ("name", "role")}
        with self._db.write() as session:
            row = _unrevoked_row(session, key_id, tenant)
            if fields.keys() & {"name", "role"}:
                refuse_person(row)
            if fields.get("expires_at"):
                fields["expires_at"] = _checked_expiry(fields["expires_at"], self._db.now(session))
            fields = {field: value for field, value in fields.items() if value != getattr(row, field)}
            if not fields:
                return Key.model_validate(row)
            # Locked before the name is looked up, so that a transaction that gives the name to another key waits here.
            bump(session, "keys")
            if "name" in fields:
                _check_free(session, fields["name"], row.tenant)
            for field, value in fields.items():
                setattr(row, field, str(value) if field == "role" else value)
            session.flush()
            return Key.model_validate(row)

    def rotate(
        self, key_id: str, overlap_seconds: int = DAY_SECONDS, tenant: TenantName | None = None
    ) -> tuple[Key, str]:
        """Give a key a new secret; its id, usage and limits stay.

        Args:
            overlap_seconds: how long the current secret and the key's sign-ins stay valid with the new one. A secret
                from an earlier rotation ends at once.
            tenant: the tenant that the key must belong to; None: any.

        Returns:
            the key's record, and the new secret, which can never be shown again.

        Raises:
            NotFound: ``KEY_NOT_FOUND``.
            Conflict: ``KEY_REVOKED``.
        """
        secret = new_secret()
        with self._db.write() as session:
            row = _unrevoked_row(session, key_id, tenant)
            refuse_person(row)
            row.previous_secret_sha256 = row.secret_sha256 if overlap_seconds else None
            until = self._db.now(session) + timedelta(seconds=overlap_seconds)
            row.previous_secret_until = until if overlap_seconds else None
            row.secret_sha256 = hash_secret(secret)
            # They may have been made with the secret that is replaced, so they end with it.
            session.execute(delete(SignInCodeRow).where(SignInCodeRow.key_id == key_id))
            for sign_in in session.scalars(select(SignInRow).where(SignInRow.key_id == key_id)):
                sign_in.expires_at = min(sign_in.expires_at, until)
            session.flush()
            bump(session, "keys")
            return Key.model_validate(row), secret

    def record_use(self, used: Mapping[str, datetime]) -> None:
        """Record when keys, by id, were last used. Other processes need not see this at once, so it does not count as a
        change.
        """
        with self._db.write() as session:
            # In one order everywhere, so that two processes never wait for each other.
            for key_id, moment in sorted(used.items()):
                at = whole_milliseconds(moment)
                is_later = or_(KeyRow.last_used_at.is_(None), KeyRow.last_used_at < at)
                session.execute(update(KeyRow).where(KeyRow.id == key_id, is_later).values(last_used_at=at))

    def revoke(self, key_id: str, tenant: TenantName | None = None) -> Key:
        """Refuse a key from now on. Revoking it again changes nothing. An attempt's key, which no user created, is
        deleted.

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
        """Return the key that a secret belongs to.

        Raises:
            Unauthenticated: ``KEY_INVALID``: unknown or revoked; ``KEY_EXPIRED``.
        """
        return self.accept(secret).key

    def accept(self, secret: str) -> AcceptedSecret:
        """Return the key that a secret belongs to, and when the secret expires.

        Raises:
            Unauthenticated: ``KEY_INVALID``: unknown or revoked; ``KEY_EXPIRED``.
        """
        with self._db.read() as session:
            return accepted(session, secret, self._db.now(session))


def tenant_keys(session: Session, tenant: TenantName | None = None) -> list[Key]:
    """Return the keys as :meth:`Keys.all` does, inside the caller's transaction."""
    query = select(KeyRow).where(or_(KeyRow.job_id.is_(None), KeyRow.revoked_at.is_(None))).order_by(KeyRow.id)
    if tenant is not None:
        query = query.where(KeyRow.tenant == tenant)
    return [Key.model_validate(row) for row in session.scalars(query)]


def add_attempt_key(session: Session, job: JobRow, role: Role) -> tuple[Key, str]:
    """Add a key of the job's tenant for its attempt, in a transaction that holds the job's row.

    The attempt revokes it at its end; if it cannot, :meth:`Keys.revoke_abandoned` does.

    Returns:
        the key's record, and the secret.
    """
    secret = new_secret()
    row = KeyRow(
        id=new_id("key"),
        name=f"{job.id}, attempt {job.attempt}",
        tenant=job.tenant,
        role=str(role),
        secret_sha256=hash_secret(secret),
        created_at=whole_milliseconds(datetime.now(UTC)),
        job_id=job.id,
        attempt=job.attempt,
    )
    session.add(row)
    session.flush()
    bump(session, "keys")
    return Key.model_validate(row), secret


def _check_name(param: str, value: str, pattern: str, rule: str) -> None:
    if not re.fullmatch(pattern, value):
        raise InvalidRequest(Code.NAME_INVALID, f"The {param} is {value!r}; it must be {rule}.", param=param)


def _checked_expiry(expires_at: datetime, now: datetime) -> datetime:
    if expires_at <= now:
        raise InvalidRequest(
            Code.KEY_EXPIRY_INVALID,
            f"The key would expire at {expires_at.isoformat()}, which is in the past.",
            remedy="Give a later time; to end a key now, revoke it: `mens keys revoke KEY`.",
            param="expires_at",
        )
    return whole_milliseconds(expires_at.astimezone(UTC))


def _check_free(session: Session, name: str, tenant: str) -> None:
    same_name = select(KeyRow.id).where(KeyRow.tenant == tenant, KeyRow.name == name, KeyRow.revoked_at.is_(None))
    if key_id := session.scalar(same_name.limit(1)):
        raise Conflict(
            Code.KEY_NAME_TAKEN,
            f"The tenant {tenant!r} has a key {name!r} already, {key_id}.",
            remedy=f"Choose another name, or revoke that key first: `mens keys revoke {key_id}`.",
            param="name",
            details={"key_id": key_id},
        )


def _unrevoked_row(session: Session, key_id: str, tenant: str | None) -> KeyRow:
    """Return the row of an unrevoked key, locked until the transaction ends.

    Raises:
        NotFound: ``KEY_NOT_FOUND``.
        Conflict: ``KEY_REVOKED``.
    """
    row = _row(session, key_id, tenant, lock=True)
    if row.revoked_at is not None:
        raise Conflict(
            Code.KEY_REVOKED,
            f"The key {key_id!r} ({row.name}) is permanently revoked.",
            remedy="Create another one: POST /v1/keys or `mens keys create NAME`.",
            param="key_id",
        )
    return row


def _row(session: Session, key_id: str, tenant: str | None, *, lock: bool = False) -> KeyRow:
    """Return a key's row; ``lock`` locks it until the transaction ends.

    Raises:
        NotFound: ``KEY_NOT_FOUND``: it does not exist, or it is another tenant's.
    """
    row = session.get(KeyRow, key_id, with_for_update=lock)
    if row is None or tenant not in (None, row.tenant):
        raise NotFound(
            Code.KEY_NOT_FOUND,
            f"The key {key_id!r} does not exist.",
            remedy="List them: GET /v1/keys or `mens keys list`.",
            param="key_id",
        )
    return row

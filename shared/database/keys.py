"""API keys: their tenant, role, limits and expiry, and the rotation of their secrets, which are stored as hashes."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field, StringConstraints
from sqlalchemy import Select, delete, or_, select, update
from sqlalchemy.orm import Session

from shared.database.change_counter import bump
from shared.database.connection import Database, whole_milliseconds
from shared.database.job_states import JobState
from shared.database.records import Value, new_id
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
from shared.errors import Code, Conflict, InvalidRequest, NotFound, Unauthenticated

KEY_PREFIX = "mens-"
DAY_SECONDS = 86_400
LONGEST_OVERLAP_SECONDS = 90 * DAY_SECONDS
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
        description="Until then the secret before the last rotation is accepted too; null: only the current secret is accepted.",
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


class Person(NamedTuple):
    """A person as the identity provider and the rules of this installation know them.

    Attributes:
        issuer: the provider.
        subject: the provider's name of the person, which never changes.
        name: e-mail address or name, for people to read.
        tenant: tenant in which the person has a role.
    """

    issuer: str
    subject: str
    name: KeyName
    tenant: TenantName
    role: Role


class AcceptedSecret(NamedTuple):
    """A key, found by one of its secrets, and when the secret expires; None: it is valid until the key is changed.

    Attributes:
        sign_in_id: the sign-in whose halves the secret is (`shared/database/sign_ins.py`).
    """

    key: Key
    until: datetime | None
    sign_in_id: str | None = None


class Keys:
    """Verbs of keys; each is one transaction."""

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
            InvalidRequest: ``NAME_INVALID``, ``KEY_EXPIRY_INVALID``. Conflict: ``KEY_NAME_TAKEN``: the tenant has an
                unrevoked key of that name.
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
            expires_at = _checked_expiry(expires_at, self._db.now(session)) if expires_at else None
            row = KeyRow(
                id=new_id("key"),
                name=name,
                tenant=tenant,
                role=str(role),
                secret_sha256=_hash(secret),
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
        """Return the keys of a tenant or of all, oldest first; with revoked ones, without those of attempts at jobs."""
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
            NotFound: ``KEY_NOT_FOUND``. Conflict: ``KEY_REVOKED``, ``KEY_NAME_TAKEN``, ``KEY_OF_PERSON``.
            InvalidRequest: ``KEY_EXPIRY_INVALID``.
        """
        fields = change.model_dump(exclude_unset=True)
        fields = {field: value for field, value in fields.items() if value is not None or field not in ("name", "role")}
        with self._db.write() as session:
            row = _unrevoked_row(session, key_id, tenant)
            if fields.keys() & {"name", "role"}:
                _refuse_person(row)
            if fields.get("expires_at"):
                fields["expires_at"] = _checked_expiry(fields["expires_at"], self._db.now(session))
            fields = {field: value for field, value in fields.items() if value != getattr(row, field)}
            if not fields:
                return Key.model_validate(row)
            # Before the name is looked up: a transaction that gives another key the name waits here.
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
            overlap_seconds: how long the present secret and the key's sign-ins stay valid with the new one. An even older
                secret ends at once.
            tenant: the tenant that the key must belong to; None: any.

        Returns:
            the key's record, and the new secret, which can never be shown again.

        Raises:
            NotFound: ``KEY_NOT_FOUND``. Conflict: ``KEY_REVOKED``, ``KEY_OF_PERSON``.
        """
        secret = KEY_PREFIX + secrets.token_urlsafe(32)
        with self._db.write() as session:
            row = _unrevoked_row(session, key_id, tenant)
            _refuse_person(row)
            row.previous_secret_sha256 = row.secret_sha256 if overlap_seconds else None
            until = self._db.now(session) + timedelta(seconds=overlap_seconds)
            row.previous_secret_until = until if overlap_seconds else None
            row.secret_sha256 = _hash(secret)
            # They may have been made with the secret that is replaced, so they end with it.
            session.execute(delete(SignInCodeRow).where(SignInCodeRow.key_id == key_id))
            for sign_in in session.scalars(select(SignInRow).where(SignInRow.key_id == key_id)):
                sign_in.expires_at = min(sign_in.expires_at, until)
            session.flush()
            bump(session, "keys")
            return Key.model_validate(row), secret

    def record_use(self, used: Mapping[str, datetime]) -> None:
        """Record when keys, by id, were last used. Others need not see it at once, so it does not count as a change."""
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
        """Return the key of a secret.

        Raises:
            Unauthenticated: ``KEY_INVALID``: unknown or revoked; ``KEY_EXPIRED``.
        """
        return self.accept(secret).key

    def accept(self, secret: str) -> AcceptedSecret:
        """Return the key that a secret belongs to, and when that ends.

        Raises:
            Unauthenticated: ``KEY_INVALID``: unknown or revoked; ``KEY_EXPIRED``.
        """
        with self._db.read() as session:
            return accepted(session, secret, self._db.now(session))


def accepted(session: Session, secret: str, now: datetime, *, lock: bool = False) -> AcceptedSecret:
    """:meth:`Keys.accept` inside the caller's transaction.

    Args:
        session: of the transaction.
        secret: of the key.
        now: by the database's clock.
        lock: keep the key as it is until the transaction ends.

    Raises:
        Unauthenticated: ``KEY_INVALID``, ``KEY_EXPIRED``.
    """
    digest = _hash(secret)
    query = select(KeyRow).where(or_(KeyRow.secret_sha256 == digest, KeyRow.previous_secret_sha256 == digest))
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None or row.revoked_at is not None:
        # It begins with OpenAI's words: litellm takes a 401 without them for a bad request.
        raise Unauthenticated(
            Code.KEY_INVALID,
            "Incorrect API key provided: it is unknown or revoked.",
            remedy="Make one with `mens keys create NAME`.",
        )
    key = Key.model_validate(row)
    ends = [key.expires_at, None if row.secret_sha256 == digest else key.previous_secret_until]
    until = min((end for end in ends if end), default=None)
    if until and now >= until:
        raise expired(key, until)
    return AcceptedSecret(key, until)


def tenant_keys(session: Session, tenant: TenantName | None = None) -> list[Key]:
    """:meth:`Keys.all` inside the caller's transaction."""
    query = select(KeyRow).where(or_(KeyRow.job_id.is_(None), KeyRow.revoked_at.is_(None))).order_by(KeyRow.id)
    if tenant is not None:
        query = query.where(KeyRow.tenant == tenant)
    return [Key.model_validate(row) for row in session.scalars(query)]


def expired(key: Key, until: datetime) -> Unauthenticated:
    """Return the error for a key, or a replaced secret, that expired at ``until``."""
    # OpenAI's words first, as above.
    if until == key.expires_at:
        message = f"Incorrect API key provided: the key {key.name!r} expired at {until:%Y-%m-%dT%H:%M:%SZ}."
        remedy = (
            f"An admin can let it live longer: `mens keys change {key.id} --expires 90d`, or PATCH /v1/keys/{key.id}."
        )
    else:
        message = f"Incorrect API key provided: this secret of the key {key.name!r} was replaced, and ended at {until:%Y-%m-%dT%H:%M:%SZ}."
        remedy = "Ask the person who rotated the key for its new secret."
    return Unauthenticated(Code.KEY_EXPIRED, message, remedy=remedy)


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


def add_person_key(session: Session, person: Person) -> Key:
    """Return a person's key in their tenant, added or with the present name and role, in the caller's transaction.

    Their keys in other tenants are revoked: the provider's groups no longer lead there. A revoked key is followed by a new one.
    The key may have expired. Its rows are locked already (:func:`lock_person_keys`).
    """
    # Before the look-up, so that two first sign-ins at once make one key.
    bump(session, "keys")
    revoke_person_keys(session, person.issuer, person.subject, kept_tenant=person.tenant)
    row = session.scalar(_person_keys(person.issuer, person.subject).where(KeyRow.tenant == person.tenant))
    name = _free_person_name(session, person, row.id if row else "")
    if row is None:
        key_id = new_id("key")
        row = KeyRow(
            id=key_id,
            name=name,
            tenant=person.tenant,
            role=str(person.role),
            secret_sha256=_no_secret(key_id),
            created_at=whole_milliseconds(datetime.now(UTC)),
            subject=person.subject,
            person_sha256=_person_hash(person.issuer, person.subject),
        )
        session.add(row)
    row.name, row.role = name, str(person.role)
    # A process of an earlier release may have given it a secret, which would open the tenant without the provider.
    row.secret_sha256, row.previous_secret_sha256, row.previous_secret_until = _no_secret(row.id), None, None
    return Key.model_validate(row)


def lock_person_keys(session: Session, person: Person) -> list[str]:
    """Lock a person's unrevoked keys until the caller's transaction ends; return their ids."""
    return [row.id for row in session.scalars(_person_keys(person.issuer, person.subject).with_for_update())]


def revoke_person_keys(session: Session, issuer: str, subject: str, *, kept_tenant: str | None = None) -> None:
    """Revoke a person's keys, in all tenants but one, in the caller's transaction."""
    query = _person_keys(issuer, subject).with_for_update()
    for row in session.scalars(query if kept_tenant is None else query.where(KeyRow.tenant != kept_tenant)):
        row.revoked_at = whole_milliseconds(datetime.now(UTC))


def _person_keys(issuer: str, subject: str) -> Select[KeyRow]:
    return select(KeyRow).where(KeyRow.person_sha256 == _person_hash(issuer, subject), KeyRow.revoked_at.is_(None))


def _no_secret(key_id: str) -> str:
    return f"no secret of {key_id}"  # which is the hash of nothing


def _person_hash(issuer: str, subject: str) -> str:
    return _hash(f"{issuer}\n{subject}")  # no issuer has a line break


def _free_person_name(session: Session, person: Person, own_id: str) -> str:
    """Return a person's name; if another key of the tenant has it, with digits of their own behind it."""
    taken = select(KeyRow.id).where(
        KeyRow.tenant == person.tenant,
        KeyRow.name == person.name,
        KeyRow.revoked_at.is_(None),
        KeyRow.id != own_id,
    )
    if session.scalar(taken.limit(1)) is None:
        return person.name
    return f"{person.name[:53]} {_person_hash(person.issuer, person.subject)[:10]}"


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
        NotFound: ``KEY_NOT_FOUND``. Conflict: ``KEY_REVOKED``.
    """
    row = _row(session, key_id, tenant, lock=True)
    if row.revoked_at is not None:
        raise Conflict(
            Code.KEY_REVOKED,
            f"The key {key_id!r} ({row.name}) is revoked for good.",
            remedy="Create another one: POST /v1/keys or `mens keys create NAME`.",
            param="key_id",
        )
    return row


def _refuse_person(row: KeyRow) -> None:
    """Raises:
    Conflict: ``KEY_OF_PERSON``.
    """
    if row.subject is not None:
        raise Conflict(
            Code.KEY_OF_PERSON,
            f"{row.name!r} is a person who signs in through the identity provider, which decides name and role, and has no secret.",
            remedy="Change their groups there, or the rules in MENS_OIDC_RULES. To end their sign-ins now: `mens keys revoke`.",
            param="key_id",
        )


def _row(session: Session, key_id: str, tenant: str | None, *, lock: bool = False) -> KeyRow:
    """A key's row; ``lock`` holds it until the transaction ends.

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


def _hash(secret: str) -> str:
    # Secrets are 256 random bits, so no dictionary helps to guess one and a plain hash is enough.
    return hashlib.sha256(secret.encode()).hexdigest()

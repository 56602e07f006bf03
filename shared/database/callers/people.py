"""Keys of people who sign in through the identity provider: one per person and tenant, without a secret."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from shared.database.callers.key_records import Key, KeyName
from shared.database.callers.key_secrets import hash_secret
from shared.database.change_counter import bump
from shared.database.connection import whole_milliseconds
from shared.database.records import new_id
from shared.database.tables.keys import KeyRow
from shared.database.tenancy import Role, TenantName
from shared.errors import Code, Conflict


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


def add_person_key(session: Session, person: Person) -> Key:
    """Return a person's key in their tenant, created or updated with the current name and role, in the caller's
    transaction.

    Their keys in other tenants are revoked, because the provider's groups no longer map to those. If the key was
    revoked, a new one is created. The returned key may have expired. The caller has already locked the person's keys
    (:func:`lock_person_keys`).
    """
    # Locked before the look-up, so that two concurrent first sign-ins create one key.
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


def refuse_person(row: KeyRow) -> None:
    """Refuse to change what the identity provider decides.

    Raises:
        Conflict: ``KEY_OF_PERSON``: the key is a person's.
    """
    if row.subject is not None:
        raise Conflict(
            Code.KEY_OF_PERSON,
            f"{row.name!r} is the key of a person who signs in through the identity provider. The provider decides its "
            f"name and role, and it has no secret.",
            remedy=(
                "Change their groups there, or the rules in MENS_OIDC_RULES. To end their sign-ins now: `mens keys "
                "revoke`."
            ),
            param="key_id",
        )


def _person_keys(issuer: str, subject: str) -> Select[KeyRow]:
    return select(KeyRow).where(KeyRow.person_sha256 == _person_hash(issuer, subject), KeyRow.revoked_at.is_(None))


def _no_secret(key_id: str) -> str:
    return f"no secret of {key_id}"  # which is not the hash of any secret


def _person_hash(issuer: str, subject: str) -> str:
    return hash_secret(f"{issuer}\n{subject}")  # no issuer has a line break


def _free_person_name(session: Session, person: Person, own_id: str) -> str:
    """Return a person's name, followed by digits derived from the person if another key of the tenant has the name."""
    taken = select(KeyRow.id).where(
        KeyRow.tenant == person.tenant,
        KeyRow.name == person.name,
        KeyRow.revoked_at.is_(None),
        KeyRow.id != own_id,
    )
    if session.scalar(taken.limit(1)) is None:
        return person.name
    return f"{person.name[:53]} {_person_hash(person.issuer, person.subject)[:10]}"

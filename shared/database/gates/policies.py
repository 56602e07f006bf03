"""Policies: stored by name and digest of their content; and their assignments to an alias, a tenant, the server.

An alias is governed by its own policy, else by its tenant's, else by the server's. Every change of an assignment is
recorded. A change waits for the moves that are in flight, and moves wait for a change, so that each move is judged by
the policy that governs when it commits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from shared.database.change_counter import bump
from shared.database.connection import Database, repeat_once
from shared.database.records import Value
from shared.database.routing import StandsFor
from shared.database.tables.gates import PolicyAssignmentRow, PolicyMoveRow, PolicyRow, ReceiptRow
from shared.database.tables.storable import storable
from shared.database.tenancy import SHARED, TenantName, visible_to
from shared.database.visibility import foreign_name_rows
from shared.errors import Code, Forbidden, InvalidRequest, NotFound

TENANT_SCOPE, SERVER_SCOPE, ALIAS_PREFIX = "tenant", "server", "alias:"
SERVER = (SHARED, SERVER_SCOPE)
"""Owner and scope of the assignment that applies if no nearer scope has one."""
DIGEST = re.compile(r"[0-9a-f]{12,64}")


class PolicyName(Value):
    """A stored policy: the tenant that it belongs to, its name, and the digest of its requirements."""

    tenant: str
    name: str
    digest: str


class StoredPolicy(PolicyName):
    """A policy with its requirements, defaults filled in, and the file as it was sent."""

    policy: dict[str, Any]
    source: str
    created_at: datetime
    created_by: str


class Assignment(Value):
    """Assignment of a policy to a scope. ``version`` grows by one with every change."""

    tenant: str
    scope: str = Field(description="`alias:NAME`, `tenant`, or `server`.")
    policy: PolicyName
    version: int


class PolicyMove(Value):
    """A recorded change of an assignment; no ``to`` means that it was removed."""

    tenant: str
    scope: str
    version: int
    moved_at: datetime
    actor: str
    actor_id: str
    reason: str
    before: PolicyName | None = Field(serialization_alias="from")
    after: PolicyName | None = Field(serialization_alias="to")


class Author(Value):
    """The key or operator that stores or assigns a policy.

    Attributes:
        is_admin: whether it may change or remove an assigned policy.
    """

    id: str
    name: str
    is_admin: bool

    @classmethod
    def of_settings(cls, variable: str) -> Author:
        """Return the operator as an author, by a setting of the server."""
        return cls(id="", name=variable, is_admin=True)


class Policies:
    """Policies as a tenant sees them: its own, and those of ``shared``. Each operation runs in one transaction."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant
        self._tenants = visible_to(tenant)

    def store(self, name: str, digest: str, policy: dict[str, Any], source: str, by: Author) -> StoredPolicy:
        """Store a policy of the tenant under a name, which refers to it from now on. Existing assignments do not
        change.
        """
        return repeat_once(partial(self._store, name, digest, policy, source, by))

    def _store(self, name: str, digest: str, policy: dict[str, Any], source: str, by: Author) -> StoredPolicy:
        with self._db.write() as session:
            row = session.get(PolicyRow, (self._tenant, name, digest))
            named = PolicyRow.tenant == self._tenant, PolicyRow.name == name
            newest = session.scalar(select(func.max(PolicyRow.created_at)).where(*named))
            # Later than all others of its name, even within a millisecond, because the name refers to the newest.
            now = max(self._db.now(session), newest + timedelta(milliseconds=1)) if newest else self._db.now(session)
            if row is None:
                row = PolicyRow(tenant=self._tenant, name=name, digest=digest, policy=policy)
                session.add(row)
            row.source, row.created_at, row.created_by = storable(source), now, by.name
            session.flush()
            return StoredPolicy.model_validate(row)

    def all(self) -> list[StoredPolicy]:
        """Return all policies: by name, the newest of a name first."""
        query = select(PolicyRow).where(PolicyRow.tenant.in_(self._tenants))
        with self._db.read() as session:
            rows = session.scalars(query.order_by(PolicyRow.name, PolicyRow.created_at.desc()))
            return [StoredPolicy.model_validate(row) for row in rows]

    def get(self, name: str) -> StoredPolicy:
        """Return a policy by its name (the newest of that name), its digest, or the digest's first 12 digits.

        Raises:
            NotFound: ``POLICY_NOT_FOUND``.
        """
        with self._db.read() as session:
            return StoredPolicy.model_validate(policy_row(session, self._tenants, name))

    def exactly(self, policy: PolicyName) -> StoredPolicy:
        """Return the policy with this name and digest.

        Raises:
            NotFound: ``POLICY_NOT_FOUND``.
        """
        with self._db.read() as session:
            row = session.get(PolicyRow, (policy.tenant, policy.name, policy.digest))
            if row is None or row.tenant not in self._tenants:
                raise _unknown(policy.name)
            return StoredPolicy.model_validate(row)

    def of_newest_receipt(self, adapter_id: str) -> StoredPolicy | None:
        """Return the policy by which an adapter was judged last; None: it never was."""
        query = select(ReceiptRow.policy_digest).where(ReceiptRow.tenant.in_(self._tenants))
        query = query.where(ReceiptRow.adapter_id == adapter_id).order_by(ReceiptRow.id.desc())
        with self._db.read() as session:
            digest = session.scalar(query.limit(1))
            row = policy_row(session, self._tenants, digest) if digest else None
            return StoredPolicy.model_validate(row) if row else None

    def assign(self, scope: str, name: str | None, by: Author, reason: str = "") -> Assignment | None:
        """Assign a policy to an alias of the tenant (``alias:NAME``), the tenant, or the server; None removes the
        policy.

        Raises:
            NotFound: ``POLICY_NOT_FOUND``.
            InvalidRequest: ``REQUEST_INVALID``: the scope is invalid, or it is a foreign name that follows an alias
                that the policy does not govern.
            Forbidden: ``ROLE_INSUFFICIENT``: only an admin changes an assigned policy; ``TENANT_FORBIDDEN``: the
                server.
        """
        with self._db.write() as session:
            assigned = assign_policy(session, self._tenant, scope, name, by, reason, self._db.now(session))
            if assigned:
                _check_reaches(session, self._tenant, assigned)
            return assigned

    def assignments(self) -> list[Assignment]:
        """Return the assignments of policies, of the tenant and of ``shared``."""
        query = select(PolicyAssignmentRow).where(PolicyAssignmentRow.tenant.in_(self._tenants))
        with self._db.read() as session:
            rows = session.scalars(query.order_by(PolicyAssignmentRow.tenant, PolicyAssignmentRow.scope))
            return [Assignment.model_validate(row) for row in rows if row.policy]

    def history(self, scope: str, *, before: int | None = None, limit: int = 100) -> list[PolicyMove]:
        """Return the changes of a scope's assignment (an alias of the tenant, the tenant, the server), newest first."""
        owner = SHARED if scope == SERVER_SCOPE else self._tenant
        query = select(PolicyMoveRow).where(PolicyMoveRow.tenant == owner, PolicyMoveRow.scope == storable(scope))
        if before is not None:
            query = query.where(PolicyMoveRow.version < before)
        with self._db.read() as session:
            rows = session.scalars(query.order_by(PolicyMoveRow.version.desc()).limit(limit))
            return [PolicyMove.model_validate(row) for row in rows]


def assign_policy(
    session: Session, tenant: TenantName, scope: str, name: str | None, by: Author, reason: str, now: datetime
) -> Assignment | None:
    """Assign as :meth:`Policies.assign` does, in a transaction that may have locked an alias but not an adapter."""
    if scope not in (TENANT_SCOPE, SERVER_SCOPE) and not scope.startswith(ALIAS_PREFIX):
        raise InvalidRequest(Code.REQUEST_INVALID, f"{scope!r} is not alias:NAME, tenant or server.", param="scope")
    if scope == SERVER_SCOPE and tenant != SHARED:
        raise Forbidden(
            Code.TENANT_FORBIDDEN,
            "Only an operator may change the server's policy.",
            remedy="Assign one to your tenant: PUT /v1/policy_assignments/tenant.",
        )
    # Waits for the moves that are in flight; later ones wait for this transaction.
    bump(session, "policies")
    row = _locked(session, tenant, scope)
    stored = policy_row(session, visible_to(tenant), name) if name is not None else None
    after = PolicyName.model_validate(stored).model_dump() if stored else None
    if after != row.policy:
        _check_may_change(session, tenant, scope, after, by)
        change = {"before": row.policy, "after": after}
        row.policy, row.version = after, row.version + 1
        author = {"actor": by.name, "actor_id": by.id, "reason": reason}
        session.add(PolicyMoveRow(tenant=tenant, scope=scope, version=row.version, moved_at=now, **author, **change))
        session.flush()
    return Assignment.model_validate(row) if row.policy else None


def _check_reaches(session: Session, tenant: TenantName, assigned: Assignment) -> None:
    """Refuse a policy for a foreign name that follows an alias under another policy: moving the alias would move the
    name too.
    """
    rows = foreign_name_rows(session, [tenant], assigned.scope.removeprefix(ALIAS_PREFIX))
    for row in rows if assigned.scope.startswith(ALIAS_PREFIX) else ():
        followed = StandsFor.model_validate(row.stands_for)
        if followed.kind != "alias":
            continue
        own = [(owner, ALIAS_PREFIX + followed.name) for owner in visible_to(tenant)]
        governing = first_assignment(session, [*own, *((owner, TENANT_SCOPE) for owner in visible_to(tenant)), SERVER])
        if governing is None or governing.policy.digest != assigned.policy.digest:
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"{row.name!r} stands for the alias {followed.name!r}, which the policy {assigned.policy.name} does "
                "not govern.",
                remedy=(
                    f"Assign it to the alias that is moved: PUT /v1/policy_assignments/{ALIAS_PREFIX}{followed.name}."
                ),
                param="scope",
            )


def first_assignment(session: Session, scopes: Sequence[tuple[str, str]]) -> Assignment | None:
    """Return the first existing assignment of these scopes, each a tenant and a scope."""
    for tenant, scope in scopes:
        row = session.get(PolicyAssignmentRow, (tenant, storable(scope)), populate_existing=True)
        if row is not None and row.policy:
            return Assignment.model_validate(row)
    return None


def first_assignments(
    session: Session, tenants: Sequence[str], scopes: Mapping[str, Sequence[tuple[str, str]]]
) -> dict[str, Assignment | None]:
    """Return, for each name, the first existing assignment of its scopes, with one query.

    Args:
        tenants: the tenants of all scopes, and ``shared``.
        scopes: scopes by name, each a tenant and a scope.
    """
    query = select(PolicyAssignmentRow).where(PolicyAssignmentRow.tenant.in_([*tenants, SHARED]))
    assignments = {
        (row.tenant, row.scope): Assignment.model_validate(row) for row in session.scalars(query) if row.policy
    }
    return {
        name: next((assignments[scope] for scope in of if scope in assignments), None) for name, of in scopes.items()
    }


def policy_row(session: Session, tenants: Sequence[str], name: str) -> PolicyRow:
    """Return the policy of a name or digest: its newest version; a tenant's own takes precedence over that of ``shared``.

    Raises:
        NotFound: ``POLICY_NOT_FOUND``.
    """
    query = select(PolicyRow).where(PolicyRow.tenant.in_(tenants)).order_by(PolicyRow.created_at.desc())
    rows = session.scalars(query.where(PolicyRow.name == storable(name))).all()
    if not rows and DIGEST.fullmatch(name):
        rows = session.scalars(query.where(PolicyRow.digest.startswith(name))).all()
    for tenant in tenants:
        if own := next((row for row in rows if row.tenant == tenant), None):
            return own
    raise _unknown(name)


def _unknown(name: str) -> NotFound:
    return NotFound(
        Code.POLICY_NOT_FOUND,
        f"The policy {name!r} does not exist.",
        remedy="List the policies with GET /v1/policies.",
        param="policy",
    )


def _locked(session: Session, tenant: str, scope: str) -> PolicyAssignmentRow:
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    new = {"tenant": tenant, "scope": scope, "version": 0}
    # Inserted first: a row that does not exist cannot be locked, and two first assignments would not see each other.
    session.execute(insert(PolicyAssignmentRow).values(new).on_conflict_do_nothing())
    return session.get_one(PolicyAssignmentRow, (tenant, scope), with_for_update=True, populate_existing=True)


def _check_may_change(session: Session, tenant: str, scope: str, after: dict[str, Any] | None, by: Author) -> None:
    """Check that the author may assign: any trainer may assign the first policy; only an admin may change, remove or
    override one.
    """
    names = [scope] if scope.startswith(ALIAS_PREFIX) else []
    for row in foreign_name_rows(session, visible_to(tenant), scope.removeprefix(ALIAS_PREFIX)) if names else ():
        # Until it has a policy of its own, a foreign name is governed by that of the alias that it maps to.
        followed = StandsFor.model_validate(row.stands_for)
        names += [ALIAS_PREFIX + followed.name] if followed.kind == "alias" else []
    wider = [(owner, name) for name in names for owner in visible_to(tenant)]
    scopes = [(tenant, scope), *wider, (tenant, TENANT_SCOPE), (SHARED, TENANT_SCOPE), SERVER]
    governing = first_assignment(session, scopes)
    if by.is_admin or (governing is None and scope.startswith(ALIAS_PREFIX)):
        return
    if governing and after and governing.policy.digest == after["digest"]:
        return
    governs = (
        f"The policy {governing.policy.name} governs {scope}"
        if governing
        else f"A policy of the {scope} governs many aliases"
    )
    raise Forbidden(
        Code.ROLE_INSUFFICIENT,
        f"{governs}; only an admin may change that.",
        remedy="Ask an admin of the tenant.",
        param="policy",
    )

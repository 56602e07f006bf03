"""Aliases: names that point to adapters, and the history of moves, which they share with foreign names.

Adapters never change, so promotion, canary and rollback are moves of an alias. Every move is numbered and recorded with
actor and reason, in the transaction that makes it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from shared.database.change_counter import bump
from shared.database.connection import Database
from shared.database.gates.policies import ALIAS_PREFIX, Assignment, Author, assign_policy, first_assignments
from shared.database.names.alias_states import state_of, stored_state
from shared.database.names.alias_targets import FURTHER_BACK, check_targets
from shared.database.names.move_evidence import WITH_EVIDENCE, Standing, Terms, check, governing, scopes_of, standing
from shared.database.records import Value
from shared.database.routing import Routing, StandsFor
from shared.database.tables.names import AliasMoveRow, AliasRow
from shared.database.tables.storable import storable
from shared.database.tenancy import SHARED, TenantName, check_owner, visible_to
from shared.database.visibility import alias_rows, aliases_by_name, foreign_name_rows
from shared.errors import Code, Conflict, InvalidRequest, NotFound

Verb = Literal["set", "rollback", "delete"]


class Alias(Routing):
    """An alias as it is now. ``version`` grows by one with every move; ``adapter_id`` has the most weight."""

    name: str
    tenant: str
    hides: str | None = Field(
        description="The tenant whose alias of the same name is hidden by this one; null: this alias hides no other."
    )
    version: int
    adapter_id: str
    moved_at: datetime


class GovernedAlias(Alias):
    """An alias, and the policy assignment that governs it."""

    governed_by: Assignment | None = Field(
        description=(
            "The assignment of the policy that governs it when this tenant moves it, or makes its own alias of that "
            "name; null: none."
        )
    )


class Move(Value):
    """One recorded move of an alias or a foreign name; no ``to`` means that it was deleted."""

    alias: str
    version: int = Field(description="The alias's version since this move.")
    moved_at: datetime
    verb: Verb
    actor: str = Field(description="Author of the move: the key's name, or the job's id.")
    actor_id: str = Field(description="Id of the key or of the job.")
    reason: str
    before: Routing | StandsFor | None = Field(serialization_alias="from")
    after: Routing | StandsFor | None = Field(serialization_alias="to")
    gate: dict[str, Any] | None = Field(
        None,
        description=(
            "Evidence for the move: the policy, and the receipts or an admin's override; null: no policy governed "
            "the alias."
        ),
    )


class Governed(Value):
    """The policy that governs a name, and the adapter to compare a new one with; None if missing."""

    policy: Assignment | None
    incumbent: str | None


class Actor(Value):
    """A key or a job that moves an alias."""

    id: str
    name: str

    @classmethod
    def job(cls, job_id: str) -> Actor:
        """Return a succeeded job as an actor."""
        return cls(id=job_id, name=job_id)


class Aliases:
    """Aliases as a tenant sees them: its own, and those of ``shared`` whose names it does not use. Each verb is one
    transaction.
    """

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant
        self._tenants = visible_to(tenant)

    def of(self, tenant: TenantName) -> Aliases:
        """Return the aliases as another tenant sees them."""
        return Aliases(self._db, tenant)

    def all(self) -> list[Alias]:
        """Return all aliases in the order of names."""
        with self._db.read() as session:
            return self._seen(session)

    def find(self, name: str) -> Alias | None:
        """Return an alias, or None."""
        with self._db.read() as session:
            return next(iter(self._seen(session, name)), None)

    def get(self, name: str) -> Alias:
        """Return an alias by its name.

        Raises:
            NotFound: ``ALIAS_NOT_FOUND``.
        """
        alias = self.find(name)
        if alias is None:
            raise _unknown(name)
        return alias

    def governed(self, name: str | None = None) -> list[GovernedAlias]:
        """Return all aliases, or the one with a given name, each with the assignment that governs it; in a few queries,
        however many there are.

        Raises:
            NotFound: ``ALIAS_NOT_FOUND``: none has the name.
        """
        others = [tenant for tenant in self._tenants if tenant != self._tenant]
        with self._db.read() as session:
            aliases = self._seen(session, name)
            if name is not None and not aliases:
                raise _unknown(name)
            hidden = {row.name for row in foreign_name_rows(session, others, name)}
            hidden |= {alias.name for alias in aliases if alias.hides or alias.tenant != self._tenant}
            # As `standing` reads them for a move: the tenant's own name, which may not exist yet, then what it hides.
            scopes = {
                alias.name: scopes_of(
                    *(
                        AliasRow(tenant=tenant, name=alias.name)
                        for tenant in (self._tenant, *others)[: 1 + (alias.name in hidden)]
                    )
                )
                for alias in aliases
            }
            governing = first_assignments(session, self._tenants, scopes)
        return [GovernedAlias(**dict(alias), governed_by=governing[alias.name]) for alias in aliases]

    def history(self, name: str, *, before: int | None = None, limit: int = 100) -> list[Move]:
        """Return the moves of an alias, newest first; ``before`` is the last version that was returned before.

        If the tenant sees no alias of that name, the moves are those of a deleted alias, preferably the tenant's own.

        Raises:
            NotFound: ``ALIAS_NOT_FOUND``: it never existed.
        """
        with self._db.read() as session:
            alias = next(iter(self._seen(session, name)), None) or self._ever(session, name)
            return moves_of(session, alias.tenant, name, before, limit)

    def set(
        self,
        name: str,
        routing: Routing,
        by: Actor,
        reason: str = "",
        *,
        expected: int | None = None,
        forbidden: frozenset[str] = frozenset(),
        terms: Terms = WITH_EVIDENCE,
        policy: tuple[str, Author] | None = None,
    ) -> Alias:
        """Point an alias of the tenant, new or existing, to adapters. A repeated call changes nothing and does not
        count as a move.

        Args:
            expected: the version that the caller has seen; None moves the alias from any version.
            forbidden: names that no alias may have, which are those of the base models.
            terms: the caller's terms for a move that a policy governs.
            policy: policy that governs the alias from now on, including this move, and who assigns it; None: no change.

        Raises:
            InvalidRequest: ``NAME_INVALID``.
            Conflict: ``ALIAS_VERSION_CONFLICT``.
        """
        _refuse_base(name, forbidden)
        with self._db.write() as session:
            now = self._db.now(session)
            row = lock_alias(session, self._tenant, name, now)
            before = standing(session, row)
            if policy:
                assign_policy(session, self._tenant, ALIAS_PREFIX + name, policy[0], policy[1], reason, now)
            check_targets(session, self._tenants, routing)
            expect_version(row, expected)
            gate = check(session, before, routing, terms, reason, now)
            move(session, row, routing, by, "set", reason, now, gate)
            return self._seen(session, name)[0]

    def rollback(
        self,
        name: str,
        by: Actor,
        reason: str = "",
        *,
        to_version: int | None = None,
        expected: int | None = None,
        forbidden: frozenset[str] = frozenset(),
    ) -> Alias:
        """Move an alias back to its state before the last move, or at a version; a deleted alias exists again.

        Args:
            forbidden: as in :meth:`set`: a base may have been given the name of a deleted alias.

        Raises:
            InvalidRequest: ``NAME_INVALID``.
            NotFound: ``ALIAS_NOT_FOUND``; ``ALIAS_VERSION_NOT_FOUND``.
            Conflict: ``ALIAS_VERSION_CONFLICT``.
        """
        _refuse_base(name, forbidden)
        with self._db.write() as session:
            row = self._own(session, name)
            expect_version(row, expected)
            last = row.version if to_version is None else to_version
            recorded = session.get(AliasMoveRow, (row.tenant, row.name, last))
            state = None if recorded is None else recorded.before if to_version is None else recorded.after
            if state is None or "targets" not in state:
                which = "before its last move" if to_version is None else f"at version {to_version}"
                raise NotFound(
                    Code.ALIAS_VERSION_NOT_FOUND,
                    f"The alias {row.name!r} did not point to an adapter {which}.",
                    remedy=f"See its moves with GET /v1/aliases/{row.name}/history.",
                    param="to_version",
                )
            routing = Routing.model_validate(state)
            check_targets(session, self._tenants, routing, FURTHER_BACK)
            move(session, row, routing, by, "rollback", reason, self._db.now(session))
            return self._seen(session, name)[0]

    def delete(
        self, name: str, by: Actor, reason: str = "", *, expected: int | None = None, terms: Terms = WITH_EVIDENCE
    ) -> None:
        """Delete an alias; its history stays. If another tenant's alias of that name answers from then on, the deletion
        counts as a move to it.

        Raises:
            NotFound: ``ALIAS_NOT_FOUND``.
            Conflict: ``ALIAS_VERSION_CONFLICT``.
        """
        with self._db.write() as session:
            row = self._own(session, name)
            if row.adapter_id is None:
                # An alias of `shared`, which the tenant's own deleted one no longer hides.
                for seen in self._seen(session, name):
                    check_owner(f"The alias {name!r}", seen.tenant, self._tenant)
                raise _unknown(name)
            expect_version(row, expected)
            now, before = self._db.now(session), standing(session, row)
            others = alias_rows(session, [tenant for tenant in self._tenants if tenant != row.tenant], name)
            shown = next(iter(others), None)
            gate = check(session, before, state_of(shown) if shown else None, terms, reason, now, shown, deletes=True)
            move(session, row, None, by, "delete", reason, now, gate)

    def governing(self, name: str) -> Governed:
        """Return the policy that governs a name of the tenant, existing or not, and the incumbent for a new adapter of
        it.
        """
        with self._db.read() as session:
            row = session.get(AliasRow, (self._tenant, storable(name))) or AliasRow(tenant=self._tenant, name=name)
            before = standing(session, row)
            return Governed(policy=governing(session, before), incumbent=before.incumbent and before.incumbent.id)

    def _seen(self, session: Session, name: str | None = None) -> list[Alias]:
        """Return the aliases that the tenant sees, all or the one with a given name."""
        aliases = []
        for row, *hidden in aliases_by_name(session, self._tenants, name).values():
            routing = state_of(row)
            assert isinstance(routing, Routing), "aliases_by_name returns those that point to adapters"
            aliases.append(
                Alias(
                    name=row.name,
                    tenant=row.tenant,
                    hides=hidden[0].tenant if hidden else None,
                    version=row.version,
                    adapter_id=routing.main,
                    moved_at=row.moved_at,
                    targets=routing.targets,
                    shadow=routing.shadow,
                )
            )
        return aliases

    def _ever(self, session: Session, name: str, *, lock: bool = False) -> AliasRow:
        """Return the row of an alias, existing or deleted: the tenant's own if it ever had one."""
        rows = (session.get(AliasRow, (tenant, name), with_for_update=lock) for tenant in self._tenants)
        row = next(filter(None, rows), None)
        if row is None:
            raise _unknown(name)
        return row

    def _own(self, session: Session, name: str) -> AliasRow:
        """Return the row of an alias that belongs to the tenant, locked until the transaction ends."""
        row = self._ever(session, name, lock=True)
        check_owner(f"The alias {name!r}", row.tenant, self._tenant)
        return row


def move_alias(
    session: Session,
    row: AliasRow,
    before: Standing,
    routing: Routing,
    by: Actor,
    reason: str,
    now: datetime,
    terms: Terms = WITH_EVIDENCE,
) -> TenantName | None:
    """Move an alias whose row the caller's transaction has locked; it has registered the adapters since it read the
    standing.

    Returns:
        the tenant whose alias of that name is hidden from the row's tenant by this move; None when none is.
    """
    seen = alias_rows(session, visible_to(row.tenant), row.name)
    gate = check(session, before, routing, terms, reason, now)
    move(session, row, routing, by, "set", reason, now, gate)
    return next((other.tenant for other in seen if other.tenant != row.tenant), None)


def lock_alias(session: Session, tenant: TenantName, name: str, now: datetime) -> AliasRow:
    """Return the alias's row, inserted if new, and locked until the transaction ends, so that moves are sequential.

    A transaction that also locks adapters locks its alias first, so that no two wait for each other.
    """
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    # Its first move makes this version 1.
    new = {"tenant": tenant, "name": name, "version": 0, "moved_at": now}
    session.execute(insert(AliasRow).values(new).on_conflict_do_nothing())
    return session.get_one(AliasRow, (tenant, name), with_for_update=True, populate_existing=True)


def move(
    session: Session,
    row: AliasRow,
    after: Routing | StandsFor | None,
    by: Actor,
    verb: Verb,
    reason: str,
    now: datetime,
    gate: dict[str, Any] | None = None,
) -> None:
    """Move a name and record the move; the only function that moves names. ``after`` is None for a deletion.

    Args:
        gate: the basis of the move, as `move_evidence.check` returns it.
    """
    before = state_of(row)
    if after == before:
        return
    row.version += 1
    row.moved_at = now
    row.routing = stored_state(after) if isinstance(after, Routing) else None
    row.adapter_id = after.main if isinstance(after, Routing) else None
    row.stands_for = stored_state(after) if isinstance(after, StandsFor) else None
    author = {"verb": verb, "actor": by.name, "actor_id": by.id, "reason": reason}
    states = {"before": stored_state(before), "after": stored_state(after)}
    session.add(
        AliasMoveRow(
            tenant=row.tenant, alias=row.name, version=row.version, moved_at=now, gate=gate, **author, **states
        )
    )
    session.flush()
    bump(session, "aliases")


def moves_of(session: Session, tenant: str, name: str, before: int | None, limit: int) -> list[Move]:
    """Return moves of a tenant's name, newest first, up to ``limit``; those before a version if one is given."""
    query = select(AliasMoveRow).where(AliasMoveRow.tenant == tenant, AliasMoveRow.alias == name)
    if before is not None:
        query = query.where(AliasMoveRow.version < before)
    rows = session.scalars(query.order_by(AliasMoveRow.version.desc()).limit(limit))
    return [Move.model_validate(row) for row in rows]


def _refuse_base(name: str, bases: frozenset[str]) -> None:
    if name in bases:
        raise InvalidRequest(Code.NAME_INVALID, f"{name!r} is the name of a base model.", param="name")


def expect_version(row: AliasRow, version: int | None) -> None:
    """Refuse a move of a name that has been moved since the caller saw a version of it.

    Raises:
        Conflict: ``ALIAS_VERSION_CONFLICT``: the caller has seen a version that is not the name's current one.
    """
    if version is not None and version != row.version:
        raise Conflict(
            Code.ALIAS_VERSION_CONFLICT,
            f"The {'name' if row.stands_for else 'alias'} {row.name!r} is at version {row.version}, not {version}: "
            "it has been moved since.",
            remedy="Read it again, then decide whether to move it.",
            details={"version": row.version},
        )


def _unknown(name: str) -> NotFound:
    return NotFound(
        Code.ALIAS_NOT_FOUND,
        f"The alias {name!r} does not exist.",
        remedy="List the aliases with GET /v1/aliases.",
        param="name",
    )

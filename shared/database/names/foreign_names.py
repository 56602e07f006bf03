"""Foreign names: names of another provider's models, which map to an alias, an adapter or a base.

A program that requested ``ft:gpt-4o-mini-2024-07-18:acme:support:9x1`` from that provider can send the same name here,
and gets the answers of the alias that the name maps to. Foreign names are in the table of the aliases, and so are their
moves.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.names.alias_states import state_of
from shared.database.names.alias_targets import check_targets
from shared.database.names.aliases import Actor, Move, expect_version, lock_alias, move, moves_of
from shared.database.names.move_evidence import WITH_EVIDENCE, Terms, check, standing
from shared.database.records import Value
from shared.database.routing import Destination, Routing, StandsFor
from shared.database.tables.adapters import AdapterRow
from shared.database.tables.names import AliasRow
from shared.database.tenancy import SHARED, TenantName, check_owner, visible_to
from shared.database.visibility import adapter_row, alias_rows, foreign_name_rows
from shared.errors import Code, InvalidRequest, NotFound

CHECKPOINT = re.compile(r"(?P<model>.+):ckpt-step-(?P<step>[0-9]{1,9})")
"""Pattern of OpenAI's checkpoint names: the model's name, and the step."""


class ForeignName(Value):
    """A foreign name as it is now. ``version`` grows by one with every move."""

    name: str
    tenant: str
    stands_for: StandsFor
    version: int
    moved_at: datetime


class ForeignNames:
    """Foreign names as a tenant sees them: its own, and those of ``shared`` that it has not mapped itself.

    Each operation runs in one transaction. A name's target is looked up as the calling tenant sees it.
    """

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant
        self._tenants = visible_to(tenant)

    def of(self, tenant: TenantName) -> ForeignNames:
        """Return the foreign names as another tenant sees them."""
        return ForeignNames(self._db, tenant)

    def all(self) -> list[ForeignName]:
        """Return all foreign names, in the order of names."""
        with self._db.read() as session:
            return [_view(row) for row in foreign_name_rows(session, self._tenants)]

    def find(self, name: str) -> ForeignName | None:
        """Return a foreign name, or None."""
        with self._db.read() as session:
            return next(map(_view, foreign_name_rows(session, self._tenants, name)), None)

    def get(self, name: str) -> ForeignName:
        """Return a foreign name.

        Raises:
            NotFound: ``NAME_NOT_FOUND``.
        """
        if foreign_name := self.find(name):
            return foreign_name
        raise _unknown(name)

    def history(self, name: str, *, before: int | None = None, limit: int = 100) -> list[Move]:
        """Return the moves of a name, newest first; ``before`` is the last version that was returned before.

        Raises:
            NotFound: ``NAME_NOT_FOUND``: it never existed.
        """
        with self._db.read() as session:
            seen = foreign_name_rows(session, self._tenants, name)
            ever = (session.get(AliasRow, (tenant, name)) for tenant in self._tenants)
            row = next(iter(seen), None) or next(filter(None, ever), None)
            if row is None:
                raise _unknown(name)
            return moves_of(session, row.tenant, name, before, limit)

    def set(
        self,
        name: str,
        stands_for: StandsFor,
        by: Actor,
        reason: str = "",
        *,
        bases: Collection[str],
        expected: int | None = None,
        terms: Terms = WITH_EVIDENCE,
    ) -> ForeignName:
        """Map a name of the tenant, new or existing, to a target. A repeated call changes nothing and does not count as
        a move.

        A name is governed by the policy of the alias that it maps to, so that it cannot bypass the policy.

        Args:
            bases: names of the base models, which no foreign name may have.
            expected: the version that the caller has seen; None moves the name from any version.

        Raises:
            InvalidRequest: ``NAME_INVALID``: the name of a base or of an alias.
            NotFound: ``ALIAS_NOT_FOUND``, ``MODEL_NOT_FOUND``: the target.
        """
        if name in bases:
            raise InvalidRequest(Code.NAME_INVALID, f"{name!r} is the name of a base model.", param="name")
        with self._db.write() as session:
            now = self._db.now(session)
            row = lock_alias(session, self._tenant, name, now)
            if alias_rows(session, self._tenants, name):
                raise InvalidRequest(
                    Code.NAME_INVALID, f"{name!r} is the name of an alias, which takes precedence.", param="name"
                )
            before = standing(session, row)
            self._check(session, stands_for, bases)
            expect_version(row, expected)
            gate = check(session, before, stands_for, terms, reason, now)
            move(session, row, stands_for, by, "set", reason, now, gate)
            return _view(row)

    def delete(
        self, name: str, by: Actor, reason: str = "", *, expected: int | None = None, terms: Terms = WITH_EVIDENCE
    ) -> None:
        """Delete a foreign name; its history stays. If a name of ``shared`` answers from then on, the deletion counts
        as a move to its target.

        Raises:
            NotFound: ``NAME_NOT_FOUND``.
        """
        with self._db.write() as session:
            seen = next(iter(foreign_name_rows(session, self._tenants, name)), None)
            if seen is None:
                raise _unknown(name)
            check_owner(f"The name {name!r}", seen.tenant, self._tenant)
            now = self._db.now(session)
            row = lock_alias(session, self._tenant, name, now)
            expect_version(row, expected)
            # Read again under the lock: another request may have deleted it meanwhile.
            if row.stands_for:
                before = standing(session, row)
                others = [tenant for tenant in self._tenants if tenant != row.tenant]
                shown = next(map(state_of, foreign_name_rows(session, others, name)), None)
                gate = check(session, before, shown, terms, reason, now, deletes=True)
                move(session, row, None, by, "delete", reason, now, gate)

    def resolve(self, name: str) -> Destination | None:
        """Return the destination of requests for a foreign name or a checkpoint of one; None if the name does not
        exist.

        Raises:
            NotFound: ``MODEL_NOT_FOUND``: the name's target is gone, or the model has no such checkpoint.
        """
        with self._db.read() as session:
            # The whole name first, because a name may itself end like that of a checkpoint.
            if row := next(iter(foreign_name_rows(session, self._tenants, name)), None):
                return self._follow(session, row)
            checkpoint = CHECKPOINT.fullmatch(name)
            model = checkpoint and next(iter(foreign_name_rows(session, self._tenants, checkpoint["model"])), None)
            return self._checkpoint(session, model, int(checkpoint["step"])) if checkpoint and model else None

    def _follow(self, session: Session, row: AliasRow) -> Destination:
        stands_for = StandsFor.model_validate(row.stands_for)
        if stands_for.kind == "base":
            return Destination(stands_for.name, None, is_foreign=True)
        routing: object = None
        if stands_for.kind == "alias":
            routing = next(map(state_of, alias_rows(session, self._tenants, stands_for.name)), None)
        elif (adapter := adapter_row(session, self._tenants, stands_for.name)) and adapter.published:
            routing = Routing.to(adapter.id)
        if isinstance(routing, Routing):
            return Destination(stands_for.name, routing, is_foreign=True)
        raise NotFound(
            Code.MODEL_NOT_FOUND,
            f"{row.name!r} stands for the {stands_for.kind} {stands_for.name!r}, which no longer exists.",
            remedy=f"Point it to another model with PUT /v1/names/{row.name}.",
            param="model",
        )

    def _checkpoint(self, session: Session, model: AliasRow, step: int) -> Destination:
        """Return the adapter of a step of the job whose adapter answers for a foreign name."""
        destination = self._follow(session, model)
        answering = destination.routing and adapter_row(session, self._tenants, destination.routing.main)
        made: dict[int, str] = {}
        if answering:
            query = select(AdapterRow).where(
                AdapterRow.tenant == answering.tenant, AdapterRow.job_id == answering.job_id, AdapterRow.published
            )
            made = {row.step: row.id for row in session.scalars(query.order_by(AdapterRow.step))}
        if adapter_id := made.get(step):
            return Destination(adapter_id, Routing.to(adapter_id), is_foreign=True)
        others = f"it has those of the steps {', '.join(map(str, made))}" if made else "it has no checkpoints"
        raise NotFound(
            Code.MODEL_NOT_FOUND,
            f"{model.name!r} is answered by {destination.name!r}, which has no checkpoint of step {step}: {others}.",
            remedy=f"Point the checkpoint's name to an adapter with PUT /v1/names/{model.name}:ckpt-step-{step}.",
            param="model",
        )

    def _check(self, session: Session, stands_for: StandsFor, bases: Collection[str]) -> None:
        """Refuse an invalid target; a valid target's row is locked, so that it still exists when the name is stored."""
        match stands_for.kind:
            case "alias" if not alias_rows(session, self._tenants, stands_for.name):
                raise NotFound(
                    Code.ALIAS_NOT_FOUND,
                    f"The alias {stands_for.name!r} does not exist.",
                    remedy="List the aliases with GET /v1/aliases.",
                    param="alias",
                )
            case "adapter":
                check_targets(session, self._tenants, Routing.to(stands_for.name))
            case "base" if stands_for.name not in bases:
                raise NotFound(
                    Code.MODEL_NOT_FOUND,
                    f"The base model {stands_for.name!r} does not exist.",
                    remedy="List the available models with GET /v1/models.",
                    param="base",
                )


def _view(row: AliasRow) -> ForeignName:
    return ForeignName(
        name=row.name,
        tenant=row.tenant,
        stands_for=StandsFor.model_validate(row.stands_for),
        version=row.version,
        moved_at=row.moved_at,
    )


def _unknown(name: str) -> NotFound:
    return NotFound(
        Code.NAME_NOT_FOUND,
        f"The foreign name {name!r} does not exist.",
        remedy="List the foreign names with GET /v1/names.",
        param="name",
    )

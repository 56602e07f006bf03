"""Evals: a data source and criteria. A run of an eval is a job; `runs.py` has the operations on runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.evaluation.runs import delete_runs, runs_of_others, unfinished_run
from shared.database.records import Value, new_id
from shared.database.tables.evaluation import EvalRow
from shared.database.tables.storable import storable
from shared.database.tenancy import SHARED, TenantName, check_owner, visible_to
from shared.errors import Code, Conflict, NotFound

EVAL_ID_PREFIX = "eval"


class Eval(Value):
    """An eval; ``spec`` is `shared.evaluation.types.EvalSpec`."""

    id: str
    tenant: str
    name: str
    labels: dict[str, Any]
    spec: dict[str, Any]
    created_at: datetime
    updated_at: datetime


class Evals:
    """Evals as a tenant sees them: its own, and those of ``shared``. Each operation runs in one transaction."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant
        self._tenants = visible_to(tenant)

    def create(self, name: str, labels: dict[str, str], spec: dict[str, Any]) -> Eval:
        """Add an eval of the tenant. An empty name becomes its id."""
        with self._db.write() as session:
            now, eval_id = self._db.now(session), new_id(EVAL_ID_PREFIX)
            row = EvalRow(
                id=eval_id,
                tenant=self._tenant,
                name=storable(name) or eval_id,
                labels=_storable_labels(labels),
                spec=spec,
                created_at=now,
                updated_at=now,
            )
            session.add(row)
            session.flush()
            return Eval.model_validate(row)

    def get(self, eval_id: str) -> Eval:
        """Return an eval by its id.

        Raises:
            NotFound: ``EVAL_NOT_FOUND``.
        """
        with self._db.read() as session:
            return Eval.model_validate(self._row(session, eval_id))

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = False,
        order_by: Literal["created_at", "updated_at"] = "created_at",
    ) -> Sequence[Eval]:
        """Return a page of evals; one more than ``limit`` if more follow.

        Args:
            after: id of the last eval of the page before.
            limit: the page's size.
            newest_first: otherwise the oldest is first.
            order_by: the time by which to sort.

        Raises:
            NotFound: ``EVAL_NOT_FOUND``: the eval ``after`` does not exist.
        """
        moment = getattr(EvalRow, order_by)
        query = select(EvalRow).where(EvalRow.tenant.in_(self._tenants)).limit(limit + 1)
        query = query.order_by(
            *((moment.desc(), EvalRow.id.desc()) if newest_first else (moment.asc(), EvalRow.id.asc()))
        )
        with self._db.read() as session:
            if after:
                last = self._row(session, after)
                at: datetime = getattr(last, order_by)
                if newest_first:
                    query = query.where(or_(moment < at, and_(moment == at, EvalRow.id < last.id)))
                else:
                    query = query.where(or_(moment > at, and_(moment == at, EvalRow.id > last.id)))
            return [Eval.model_validate(row) for row in session.scalars(query)]

    def update(self, eval_id: str, *, name: str | None, labels: dict[str, str] | None) -> Eval:
        """Change an eval's name and labels; None leaves a value as it is. Its criteria and data never change.

        Raises:
            NotFound: ``EVAL_NOT_FOUND``.
        """
        with self._db.write() as session:
            row = self._own_row(session, eval_id)
            if name is not None:
                row.name = storable(name) or row.id
            if labels is not None:
                row.labels = _storable_labels(labels)
            row.updated_at = self._db.now(session)
            session.flush()
            return Eval.model_validate(row)

    def delete(self, eval_id: str) -> None:
        """Delete an eval with its runs and their items' results; the jobs that carried them out stay.

        Raises:
            NotFound: ``EVAL_NOT_FOUND``.
            Conflict: ``EVAL_IN_USE`` by a run that has not ended, or by runs of other tenants, which are not its
                owner's to delete.
        """
        with self._db.write() as session:
            row = self._own_row(session, eval_id)
            if others := runs_of_others(session, row.id, self._tenant):
                raise Conflict(
                    Code.EVAL_IN_USE,
                    f"Other tenants have {others} runs of the eval {eval_id}.",
                    remedy="Ask these tenants to delete their runs first; deleting the eval would delete them too.",
                    details={"runs_of_others": others},
                )
            if run := unfinished_run(session, row.id):
                raise Conflict(
                    Code.EVAL_IN_USE,
                    f"The run {run} of the eval {eval_id} has not ended.",
                    remedy="Wait until it has finished, or cancel it.",
                    details={"run_id": run},
                )
            delete_runs(session, row.id)
            session.delete(row)

    def _row(self, session: Session, eval_id: str, *, lock: bool = False) -> EvalRow:
        row = session.get(EvalRow, storable(eval_id), with_for_update=lock)
        if row is None or row.tenant not in self._tenants:
            raise NotFound(
                Code.EVAL_NOT_FOUND,
                f"The eval {eval_id!r} does not exist.",
                remedy="List them: GET /v1/evals.",
                param="eval_id",
            )
        return row

    def _own_row(self, session: Session, eval_id: str) -> EvalRow:
        row = self._row(session, eval_id, lock=True)
        check_owner(f"The eval {eval_id}", row.tenant, self._tenant)
        return row


def _storable_labels(labels: dict[str, str]) -> dict[str, str]:
    return {storable(key): storable(value) for key, value in labels.items()}

"""Runs of evals. A run's state is that of the job that carries it out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.job_states import FINAL, JobState
from shared.database.records import Job, Value, new_id
from shared.database.tables.evaluation import EvalItemRow, EvalRow, EvalRunRow
from shared.database.tables.jobs import JobRow
from shared.database.tables.storable import storable
from shared.database.tenancy import SHARED, TenantName, check_owner, visible_to
from shared.errors import Code, Conflict, NotFound

RUN_ID_PREFIX = "evalrun"


class EvalRun(Value):
    """A run of an eval; ``plan`` is `shared.evaluation.plan.EvaluationPlan`, ``totals``
    `shared.evaluation.results.Totals`.
    """

    id: str
    job_id: str
    eval_id: str
    tenant: str
    name: str
    plan: dict[str, Any]
    totals: dict[str, Any]
    created_at: datetime


class EvalRuns:
    """Runs as a tenant sees them: its own, and those of ``shared``. Each operation runs in one transaction."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant
        self._tenants = visible_to(tenant)

    def get(self, eval_id: str, run_id: str) -> tuple[EvalRun, Job]:
        """Return a run and the job that carries it out.

        Raises:
            NotFound: ``EVAL_RUN_NOT_FOUND``.
        """
        with self._db.read() as session:
            row = self._row(session, eval_id, run_id)
            return EvalRun.model_validate(row), Job.model_validate(session.get_one(JobRow, row.job_id))

    def list(
        self,
        eval_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = False,
        states: Collection[JobState] | None = None,
    ) -> Sequence[tuple[EvalRun, Job]]:
        """Return a page of an eval's runs; one more than ``limit`` if more follow.

        Args:
            eval_id: the eval's id, which the tenant sees.
            after: id of the last run of the page before.
            limit: the page's size.
            newest_first: else the oldest is first.
            states: states of the jobs; None: any.
        """
        order = EvalRunRow.id.desc() if newest_first else EvalRunRow.id.asc()
        query = self._seen(eval_id).join(JobRow, JobRow.id == EvalRunRow.job_id).add_columns(JobRow)
        if after:
            query = query.where(EvalRunRow.id < after if newest_first else EvalRunRow.id > after)
        if states is not None:
            query = query.where(JobRow.state.in_([str(state) for state in states]))
        with self._db.read() as session:
            rows = session.execute(query.order_by(order).limit(limit + 1))
            return [(EvalRun.model_validate(row), Job.model_validate(job)) for row, job in rows]

    def delete(self, eval_id: str, run_id: str) -> None:
        """Delete a run that has ended, with its items' results; the job that carried it out stays.

        Raises:
            NotFound: ``EVAL_RUN_NOT_FOUND``.
            Conflict: ``EVAL_IN_USE``: it has not ended.
        """
        with self._db.write() as session:
            row = self._row(session, eval_id, run_id)
            check_owner(f"The run {run_id}", row.tenant, self._tenant)
            job = session.get_one(JobRow, row.job_id, with_for_update=True)
            if JobState(job.state) not in FINAL:
                raise Conflict(
                    Code.EVAL_IN_USE,
                    f"The run {run_id} has not ended.",
                    remedy="Wait until it has finished, or cancel it first.",
                )
            session.execute(delete(EvalItemRow).where(EvalItemRow.run_id == row.id))
            session.delete(row)

    def _row(self, session: Session, eval_id: str, run_id: str) -> EvalRunRow:
        row = session.scalar(self._seen(eval_id).where(EvalRunRow.id == storable(run_id)))
        if row is None:
            raise NotFound(
                Code.EVAL_RUN_NOT_FOUND,
                f"The eval {eval_id!r} has no run {run_id!r}.",
                remedy=f"List them: GET /v1/evals/{eval_id}/runs.",
                param="run_id",
            )
        return row

    def _seen(self, eval_id: str) -> Select[EvalRunRow]:
        return select(EvalRunRow).where(EvalRunRow.eval_id == storable(eval_id), EvalRunRow.tenant.in_(self._tenants))


def add_run(session: Session, job: JobRow, eval_id: str, name: str) -> None:
    """Add the run of an ``evaluate`` job, in the transaction that adds the job.

    Raises:
        NotFound: ``EVAL_NOT_FOUND``: it was deleted meanwhile.
    """
    _add(session, job, job.id, eval_id, name, job.plan, job.created_at)


def open_run(session: Session, job: JobRow, eval_id: str, name: str, plan: dict[str, Any], now: datetime) -> EvalRun:
    """Return the eval run within a job of another kind; a later attempt gets the run of an earlier one.

    Raises:
        NotFound: ``EVAL_NOT_FOUND``.
    """
    query = select(EvalRunRow).where(EvalRunRow.job_id == job.id, EvalRunRow.eval_id == eval_id)
    row = session.scalar(query.where(EvalRunRow.name == name))
    return EvalRun.model_validate(row or _add(session, job, new_id(RUN_ID_PREFIX), eval_id, name, plan, now))


def unfinished_run(session: Session, eval_id: str) -> str | None:
    """Return an unfinished run of an eval; None if all have ended."""
    query = select(EvalRunRow.id).join(JobRow, JobRow.id == EvalRunRow.job_id).where(EvalRunRow.eval_id == eval_id)
    return session.scalar(query.where(JobRow.state.not_in([str(state) for state in FINAL])).limit(1))


def runs_of_others(session: Session, eval_id: str, tenant: TenantName) -> int:
    """Count the runs of an eval that belong to other tenants."""
    query = select(func.count()).select_from(EvalRunRow)
    return session.scalar(query.where(EvalRunRow.eval_id == eval_id, EvalRunRow.tenant != tenant)) or 0


def delete_runs(session: Session, eval_id: str) -> None:
    """Delete all runs of an eval, with their items' results."""
    runs = select(EvalRunRow.id).where(EvalRunRow.eval_id == eval_id)
    session.execute(delete(EvalItemRow).where(EvalItemRow.run_id.in_(runs)))
    session.execute(delete(EvalRunRow).where(EvalRunRow.eval_id == eval_id))


def _add(
    session: Session, job: JobRow, run_id: str, eval_id: str, name: str, plan: dict[str, Any], now: datetime
) -> EvalRunRow:
    # Locked until the transaction ends, so that the eval is not deleted meanwhile.
    if session.get(EvalRow, eval_id, with_for_update=True) is None:
        raise NotFound(Code.EVAL_NOT_FOUND, f"The eval {eval_id!r} no longer exists.", param="eval_id")
    row = EvalRunRow(
        id=run_id,
        job_id=job.id,
        eval_id=eval_id,
        tenant=job.tenant,
        name=storable(name) or run_id,
        plan=plan,
        totals={},
        created_at=now,
    )
    session.add(row)
    session.flush()
    return row

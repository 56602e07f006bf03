"""Deleting an adapter: marked in one transaction, carried out step by step, its record kept.

    begin ─► no request is routed to it ─► unpublished in the storage ─► every replica drains and unloads it ─► folder removed
             (deleting_at)                                                                                     (deleted_at)

A process that stops in between leaves a row with which the next round continues. Rows of several tenants may share one
stored folder, which is removed with the last of them. A job that is about to store the same content keeps it
(:func:`reserve_adapters`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from shared.database.change_counter import bump
from shared.database.connection import Database
from shared.database.job_states import FINAL
from shared.database.records import Kind, Value
from shared.database.tables.adapters import AdapterRow, CheckpointPermissionRow
from shared.database.tables.evaluation import EvalRunRow
from shared.database.tables.jobs import JobRow
from shared.database.tables.names import AliasRow
from shared.database.tenancy import SHARED, TenantName, check_owner, visible_to
from shared.errors import Code, Conflict, NotFound

STORING = "storing"
"""Key in a job's progress: digests of the adapters that it is about to store or has stored."""


class PendingDeletion(Value):
    """An adapter whose deletion began ``seconds`` ago."""

    tenant: str
    id: str
    digest: str
    seconds: float


class DeletionStep(Enum):
    """Outcome of one step of a deletion."""

    ALONE = auto()
    """The step was carried out: nothing else needs the stored folder."""
    KEPT = auto()
    """The step was not carried out: a job is about to store the same content; wait for its end."""
    OVER = auto()
    """Nothing is left to do: done, trained again, or another tenant has the same content."""


class Deletions:
    """Steps of deletions of a tenant's adapters; each runs in one transaction."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant

    def of(self, tenant: TenantName) -> Deletions:
        """Return the same operations for another tenant."""
        return Deletions(self._db, tenant)

    def begin(self, adapter_id: str) -> None:
        """Mark an adapter of the tenant as being deleted; from then on it can be neither used nor aliased. Idempotent.

        Raises:
            NotFound: ``MODEL_NOT_FOUND``.
            Conflict: ``MODEL_IN_USE`` by aliases or jobs, which ``details`` names.
        """
        with self._db.write() as session:
            seen = visible_to(self._tenant)
            # Locked in the order of `lock_contents`.
            keys = ((tenant, adapter_id) for tenant in sorted(seen))
            candidates = [row for key in keys if (row := session.get(AdapterRow, key, with_for_update=True))]
            candidates.sort(key=lambda row: seen.index(row.tenant))
            row = next((row for row in candidates if row.tenant == self._tenant or row.deleting_at is None), None)
            if row is None:
                raise NotFound(
                    Code.MODEL_NOT_FOUND,
                    f"The model {adapter_id!r} does not exist.",
                    remedy="List the available models with GET /v1/models.",
                    param="model",
                )
            check_owner(f"The model {adapter_id}", row.tenant, self._tenant)
            if row.deleting_at is not None:
                return
            _refuse_lent(session, row)
            _refuse_in_use(session, row)
            withdraw(session, row, self._db.now(session))

    def pending(self, limit: int = 1000) -> list[PendingDeletion]:
        """List every tenant's adapters whose deletion has not finished, the oldest first."""
        query = select(AdapterRow).where(AdapterRow.deleting_at.is_not(None), AdapterRow.deleted_at.is_(None))
        with self._db.read() as session:
            now = self._db.now(session)
            rows = session.scalars(query.order_by(AdapterRow.deleting_at, AdapterRow.id).limit(limit))
            return [
                PendingDeletion(
                    tenant=row.tenant,
                    id=row.id,
                    digest=row.digest,
                    seconds=(now - (row.deleting_at or now)).total_seconds(),
                )
                for row in rows
            ]

    def unpublish(self, deletion: PendingDeletion, remove_manifest: Callable[[], None]) -> DeletionStep:
        """Unpublish an adapter in the storage, unless something needs it. No job can begin to store it meanwhile.

        Args:
            deletion: the pending deletion.
            remove_manifest: called inside the transaction when nothing else needs the folder; it must be quick.
        """
        return self._step(deletion, remove_manifest, ends=False)

    def finish(self, deletion: PendingDeletion, remove: Callable[[], None]) -> DeletionStep:
        """Remove an adapter's folder, unless something needs it, and end its deletion.

        Args:
            deletion: the pending deletion of an adapter that every replica has unloaded.
            remove: called inside the transaction when nothing else needs the folder; it must be quick.
        """
        return self._step(deletion, remove, ends=True)

    def _step(self, deletion: PendingDeletion, do: Callable[[], None], *, ends: bool) -> DeletionStep:
        with self._db.write() as session:
            # Before the jobs are read: one that reserves the content now waits until this step has ended.
            lock_contents(session, [deletion.digest])
            is_reserved = any(_stores(job, deletion.digest) for job in open_jobs(session))
            # Read after the jobs: a job that has just finished has added its rows by now.
            rows = list(session.scalars(_with_digest([deletion.digest]).execution_options(populate_existing=True)))
            own = next((row for row in rows if (row.tenant, row.id) == (deletion.tenant, deletion.id)), None)
            if own is None or own.deleting_at is None or own.deleted_at is not None:
                return DeletionStep.OVER
            is_shared = any(row.deleting_at is None for row in rows)
            step = DeletionStep.OVER if is_shared else DeletionStep.KEPT if is_reserved else DeletionStep.ALONE
            # Inside the transaction: the rows stay locked, so no job begins to store the folder while it is removed.
            if step is DeletionStep.ALONE:
                do()
            if step is DeletionStep.OVER or (ends and step is DeletionStep.ALONE):
                own.deleted_at = self._db.now(session)
                # Still true if a process of the previous release began the deletion.
                own.published = False
            return step


def withdraw(session: Session, row: AdapterRow, now: datetime) -> None:
    """Mark an adapter, whose row is locked, as being deleted: after the transaction, no request is routed to it."""
    row.deleting_at, row.published = now, False
    session.flush()
    bump(session, "adapters")


def adapter_needed_by(kind: str, plan: Mapping[str, Any]) -> str | None:
    """Return the digest of the stored adapter that a job reads: the one to merge, or the one to continue from."""
    if kind == Kind.MERGE:
        return plan.get("adapter_digest")
    parent = plan.get("parent") if kind == Kind.FINETUNE else None
    return parent["digest"] if parent else None


def models_requested_by(session: Session, jobs: Sequence[JobRow]) -> dict[str, set[str]]:
    """Return the models to which unfinished jobs send requests until they end, by the id of the job: the models that an
    evaluation compares, the models that judge its answers, and the models that a judged adapter is compared with. They
    include names of bases and aliases.
    """
    models_by_job = {job.id: models_of(job.plan) if job.kind == Kind.EVALUATE else set[str]() for job in jobs}
    judged = {
        job.id: str(job.plan["adapter_id"]) for job in jobs if job.kind == Kind.JUDGE and "adapter_id" in job.plan
    }
    parents: dict[str, set[str]] = {}
    made = select(AdapterRow.id, AdapterRow.manifest).where(AdapterRow.id.in_(set(judged.values())))
    for adapter_id, manifest in session.execute(made) if judged else ():
        if parent := (manifest.get("parent") or {}).get("id"):
            parents.setdefault(adapter_id, set()).add(parent)
    for job_id, adapter_id in judged.items():
        models_by_job[job_id] |= {adapter_id} | parents.get(adapter_id, set())
    # A judging job opens its runs one by one. Its own plan names neither the alias's target, which may move, nor the
    # models of criteria.
    opened = select(EvalRunRow.job_id, EvalRunRow.plan).join(JobRow, JobRow.id == EvalRunRow.job_id)
    opened = opened.where(JobRow.state.not_in([str(state) for state in FINAL]), JobRow.kind != Kind.EVALUATE)
    for job_id, plan in session.execute(opened) if models_by_job else ():
        models_by_job.get(job_id, set()).update(models_of(plan))
    return models_by_job


def models_of(plan: Mapping[str, Any]) -> set[str]:
    """Return the models of an evaluation's plan: those that answer, and those that judge the answers."""
    judges = {criterion["model"] for criterion in plan.get("testing_criteria", []) if "model" in criterion}
    return judges | {model["served"] for model in plan.get("models", [])}


def keep_for_job(session: Session, tenant: TenantName, digest: str) -> None:
    """Lock a stored adapter against deletion until the caller's transaction, which queues a job that reads it, has ended.

    Raises:
        NotFound: ``ADAPTER_NOT_FOUND``: the tenant sees none with this content, or it is being deleted.
    """
    stored = _with_digest([digest]).where(AdapterRow.tenant.in_(visible_to(tenant)), AdapterRow.deleting_at.is_(None))
    # A shared lock: other jobs may need the adapter too, and only its deletion has to wait.
    if not session.scalars(stored.with_for_update(read=True)).all():
        raise NotFound(
            Code.ADAPTER_NOT_FOUND,
            "The adapter that the job needs was deleted.",
            remedy="List the adapters with GET /v1/adapters.",
            param="adapter",
        )


def keep_models_for_job(session: Session, tenant: TenantName, models: Collection[str]) -> None:
    """Lock the adapters among the models against deletion until the caller's transaction, which queues a job that sends
    requests to them, has ended.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``: one of them is being deleted.
    """
    query = select(AdapterRow).where(AdapterRow.id.in_(models), AdapterRow.tenant.in_(visible_to(tenant)))
    rows = session.scalars(query.order_by(AdapterRow.id, AdapterRow.tenant).with_for_update(read=True)).all()
    kept = {row.id for row in rows if row.deleting_at is None}
    if deleted := sorted({row.id for row in rows} - kept):
        raise NotFound(
            Code.MODEL_NOT_FOUND,
            f"The model {deleted[0]!r} was deleted.",
            remedy="List the available models with GET /v1/models.",
            param="model",
        )


def reserve_adapters(session: Session, job: JobRow, digests: Sequence[str]) -> None:
    """Keep stored adapters from being removed until a job has finished, because it is about to store the same content.

    Waits for a transaction that is removing one of them, so that what the caller stores afterwards is complete.
    """
    lock_contents(session, digests)
    job.progress = {**job.progress, STORING: list(digests)}
    session.flush()


def lock_contents(session: Session, digests: Sequence[str]) -> None:
    """Lock the rows of all tenants until the transaction ends, so that steps of a deletion are sequential."""
    # In the order of `_with_digest`, as everywhere: two transactions can then not wait for each other.
    session.scalars(_with_digest(digests).with_for_update()).all()


def _with_digest(digests: Sequence[str]) -> Select[AdapterRow]:
    return select(AdapterRow).where(AdapterRow.digest.in_(list(digests))).order_by(AdapterRow.id, AdapterRow.tenant)


def _refuse_lent(session: Session, row: AdapterRow) -> None:
    query = select(CheckpointPermissionRow).where(
        CheckpointPermissionRow.tenant == row.tenant, CheckpointPermissionRow.adapter_id == row.id
    )
    permissions = list(session.scalars(query.order_by(CheckpointPermissionRow.id)))
    if not permissions:
        return
    projects = [permission.project for permission in permissions]
    raise Conflict(
        Code.MODEL_IN_USE,
        f"{row.id} may be used by "
        f"{', '.join(projects[:5])}{f' and {len(projects) - 5} more' if len(projects) > 5 else ''}.",
        remedy="Revoke the permissions first: DELETE /v1/fine_tuning/checkpoints/MODEL/permissions/ID.",
        param="model",
        details={"permissions": [permission.id for permission in permissions]},
    )


def users_of(session: Session, row: AdapterRow) -> tuple[list[AliasRow], list[str]]:
    """Return the aliases and foreign names that name an adapter, and the unfinished jobs that need it."""
    existing = select(AliasRow).order_by(AliasRow.tenant, AliasRow.name)
    aliases = [alias for alias in session.scalars(existing) if _sees(alias.tenant, row) and row.id in named_by(alias)]
    jobs = [job for job in open_jobs(session) if _sees(job.tenant, row)]
    models_by_job = models_requested_by(session, jobs)
    return aliases, [job.id for job in jobs if row.id in models_by_job[job.id] or _reads_or_stores(job, row)]


def _reads_or_stores(job: JobRow, row: AdapterRow) -> bool:
    return _stores(job, row.digest) or adapter_needed_by(job.kind, job.plan) == row.digest


def _refuse_in_use(session: Session, row: AdapterRow) -> None:
    aliases, jobs = users_of(session, row)
    if not aliases and not jobs:
        return
    users = [
        f"the {'name' if alias.stands_for else 'alias'} {alias.name!r}"
        + (f" of the tenant {alias.tenant!r}" if alias.tenant != row.tenant else "")
        for alias in aliases
    ]
    users += [f"the job {job}" for job in jobs]
    raise Conflict(
        Code.MODEL_IN_USE,
        f"{row.id} is needed by {', '.join(users[:5])}{f' and {len(users) - 5} more' if len(users) > 5 else ''}.",
        remedy="Move or delete the aliases; cancel the jobs or wait until they have finished.",
        param="model",
        details={"aliases": [alias.name for alias in aliases], "jobs": jobs},
    )


def named_by(alias: AliasRow) -> set[str]:
    """Return the ids of all adapters that a name refers to, including its shadow; empty if it is deleted."""
    if alias.adapter_id is None:
        stands_for = alias.stands_for or {}
        return {stands_for["name"]} if stands_for.get("kind") == "adapter" else set()
    routing = alias.routing or {}
    shadow = routing.get("shadow") or {}
    named = {alias.adapter_id, shadow.get("adapter"), *(target["adapter"] for target in routing.get("targets", []))}
    return named - {None}


def _sees(tenant: str, row: AdapterRow) -> bool:
    return row.tenant in visible_to(tenant)


def open_jobs(session: Session, *, lock: bool = False) -> list[JobRow]:
    """Return every tenant's unfinished jobs; ``lock`` locks their rows until the transaction ends."""
    query = select(JobRow).where(JobRow.state.not_in([str(state) for state in FINAL])).order_by(JobRow.id)
    return list(session.scalars(query.with_for_update() if lock else query))


def _stores(job: JobRow, digest: str) -> bool:
    return digest in job.progress.get(STORING, [])

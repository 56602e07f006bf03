"""Deleting an adapter: marked in one transaction, carried out step by step, its record kept.

    begin ─► nobody is routed to it ─► withdrawn from the storage ─► every replica drains and unloads it ─► folder removed
             (deleting_at)                                                                                (deleted_at)

Whoever stops in between leaves a row that the next round goes on with. Rows of several tenants may share one stored folder:
it goes with the last of them. A job that is about to store the same content keeps it (:func:`keep_for_job`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum, auto

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from shared.changes import bump
from shared.db import Database
from shared.errors import Code, Conflict, NotFound
from shared.job import Kind, Value
from shared.jobstate import FINAL
from shared.tables import AdapterRow, AliasRow, JobRow
from shared.tenancy import SHARED, TenantName, check_owner, visible_to

STORING = "storing"
"""Key in a job's progress: digests of the adapters that it is about to store, or has."""


class Doomed(Value):
    """An adapter that is being deleted; ``seconds`` since that began."""

    tenant: str
    id: str
    digest: str
    seconds: float


class Standing(Enum):
    """How a deletion stands with the rest of the installation."""

    ALONE = auto()
    """Nothing else needs the stored folder."""
    KEPT = auto()
    """A job is about to store the same content; wait for its end."""
    OVER = auto()
    """There is nothing to carry out: done, trained again, or another tenant has the same content."""


class Deletions:
    """Verbs of deletion, for a tenant; each is one transaction."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant

    def of(self, tenant: TenantName) -> Deletions:
        """The verbs for another tenant."""
        return Deletions(self._db, tenant)

    def begin(self, adapter_id: str) -> None:
        """Mark an adapter of the tenant as being deleted; from then on it can be neither asked nor aliased. Idempotent.

        Raises:
            NotFound: ``MODEL_NOT_FOUND``. Forbidden: ``TENANT_FORBIDDEN``: it is shared. Conflict: ``MODEL_IN_USE`` by
                aliases or jobs, which ``details`` names.
        """
        with self._db.write() as session:
            row = self._row(session, adapter_id)
            if row.deleting_at is not None:
                return
            _refuse_in_use(session, row)
            row.deleting_at = self._db.now(session)
            row.published = False  # nobody is answered by it any more
            session.flush()
            bump(session, "adapters")

    def pending(self, limit: int = 1000) -> list[Doomed]:
        """Every tenant's adapters whose deletion is not finished, the oldest first."""
        query = select(AdapterRow).where(AdapterRow.deleting_at.is_not(None), AdapterRow.deleted_at.is_(None))
        with self._db.read() as session:
            now = self._db.now(session)
            rows = session.scalars(query.order_by(AdapterRow.deleting_at).limit(limit))
            return [_doomed(row, now) for row in rows]

    def withdraw(self, doomed: Doomed, withdraw: Callable[[], None]) -> Standing:
        """Take an adapter out of the storage, unless something needs it. No job begins to store it meanwhile.

        Args:
            doomed: what is being deleted.
            withdraw: called when nothing else needs the folder; it must be quick.
        """
        return self._step(doomed, withdraw, ends=False)

    def finish(self, doomed: Doomed, remove: Callable[[], None]) -> Standing:
        """Remove an adapter's folder, unless something needs it, and end its deletion.

        Args:
            doomed: what is being deleted, unloaded everywhere.
            remove: called when nothing else needs the folder; it must be quick.
        """
        return self._step(doomed, remove, ends=True)

    def _step(self, doomed: Doomed, do: Callable[[], None], *, ends: bool) -> Standing:
        with self._db.write() as session:
            _lock(session, [doomed.digest])
            kept = any(_stores(job, doomed.digest) for job in open_jobs(session))
            # After the jobs: the rows of one that has just ended are there by now.
            rows = list(session.scalars(_with_digest([doomed.digest]).execution_options(populate_existing=True)))
            own = next((row for row in rows if (row.tenant, row.id) == (doomed.tenant, doomed.id)), None)
            if own is None or own.deleting_at is None or own.deleted_at is not None:
                return Standing.OVER
            shared = any(row.deleting_at is None for row in rows)
            standing = Standing.OVER if shared else Standing.KEPT if kept else Standing.ALONE
            if standing is Standing.ALONE:
                do()
            if standing is Standing.OVER or (ends and standing is Standing.ALONE):
                own.deleted_at = self._db.now(session)
                own.published = False  # also when a release before began it, which left this true
            return standing

    def _row(self, session: Session, adapter_id: str) -> AdapterRow:
        seen = visible_to(self._tenant)
        keys = ((tenant, adapter_id) for tenant in sorted(seen))  # in the order of `_lock`
        found = [row for key in keys if (row := session.get(AdapterRow, key, with_for_update=True))]
        found.sort(key=lambda row: seen.index(row.tenant))
        row = next((row for row in found if row.tenant == self._tenant or row.deleting_at is None), None)
        if row is None:
            raise NotFound(
                Code.MODEL_NOT_FOUND,
                f"There is no model {adapter_id!r}.",
                remedy="List what there is with GET /v1/models.",
                param="model",
            )
        check_owner(f"The model {adapter_id}", row.tenant, self._tenant)
        return row


def keep_for_merge(session: Session, tenant: TenantName, digest: str) -> None:
    """Keep a stored adapter from being deleted until the caller's transaction, which queues a merge of it, has ended.

    Raises:
        NotFound: ``ADAPTER_NOT_FOUND``: none that the tenant sees has this content, or it is being deleted.
    """
    found = _with_digest([digest]).where(AdapterRow.tenant.in_(visible_to(tenant)), AdapterRow.deleting_at.is_(None))
    if not session.scalars(found.with_for_update(read=True)).all():
        raise NotFound(
            Code.ADAPTER_NOT_FOUND,
            "The adapter to merge was deleted.",
            remedy="List what there is with GET /v1/adapters.",
            param="adapter",
        )


def keep_for_job(session: Session, job: JobRow, digests: Sequence[str]) -> None:
    """Keep stored adapters from being removed until a job is over, because it is about to store the same.

    Whoever is removing one of them at the moment is waited for; what the caller then stores is whole.
    """
    _lock(session, digests)
    job.progress = {**job.progress, STORING: list(digests)}
    session.flush()


def _lock(session: Session, digests: Sequence[str]) -> None:
    """Hold the rows of all tenants until the transaction ends: of all that begin or carry out a deletion, one at a time."""
    session.scalars(_with_digest(digests).with_for_update()).all()


def _with_digest(digests: Sequence[str]) -> Select[AdapterRow]:
    return select(AdapterRow).where(AdapterRow.digest.in_(list(digests))).order_by(AdapterRow.id, AdapterRow.tenant)


def _refuse_in_use(session: Session, row: AdapterRow) -> None:
    found = [alias for alias in _aliases_that_see(session, row) if row.id in named_by(alias)]
    aliases = [alias.name for alias in found]
    jobs = [job.id for job in open_jobs(session) if _sees(job.tenant, row) and _needs(job, row.digest)]
    if not aliases and not jobs:
        return
    users = [*(_describe_alias(alias, row) for alias in found), *(f"the job {job}" for job in jobs)]
    raise Conflict(
        Code.MODEL_IN_USE,
        f"{row.id} is needed by {', '.join(users[:5])}{f' and {len(users) - 5} more' if len(users) > 5 else ''}.",
        remedy="Move or delete the aliases; wait for the jobs, or cancel them.",
        param="model",
        details={"aliases": aliases, "jobs": jobs},
    )


def _describe_alias(alias: AliasRow, row: AdapterRow) -> str:
    return f"the alias {alias.name!r}" + (f" of the tenant {alias.tenant!r}" if alias.tenant != row.tenant else "")


def named_by(alias: AliasRow) -> set[str]:
    """Ids of all adapters that an alias names, its shadow too."""
    routing = alias.routing or {}
    shadow = routing.get("shadow") or {}
    named = {alias.adapter_id, shadow.get("adapter"), *(target["adapter"] for target in routing.get("targets", []))}
    return named - {None}


def _aliases_that_see(session: Session, row: AdapterRow) -> list[AliasRow]:
    query = select(AliasRow).where(AliasRow.adapter_id.is_not(None)).order_by(AliasRow.tenant, AliasRow.name)
    return [alias for alias in session.scalars(query) if _sees(alias.tenant, row)]


def _sees(tenant: str, row: AdapterRow) -> bool:
    return row.tenant in visible_to(tenant)


def open_jobs(session: Session, *, lock: bool = False) -> list[JobRow]:
    """Every tenant's jobs that are not over; ``lock`` holds their rows until the transaction ends."""
    query = select(JobRow).where(JobRow.state.not_in([str(state) for state in FINAL])).order_by(JobRow.id)
    return list(session.scalars(query.with_for_update() if lock else query))


def _needs(job: JobRow, digest: str) -> bool:
    return _stores(job, digest) or (job.kind == Kind.MERGE and job.plan.get("adapter_digest") == digest)


def _stores(job: JobRow, digest: str) -> bool:
    return digest in job.progress.get(STORING, [])


def _doomed(row: AdapterRow, now: datetime) -> Doomed:
    began = row.deleting_at or now
    return Doomed(tenant=row.tenant, id=row.id, digest=row.digest, seconds=(now - began).total_seconds())

"""Summaries of jobs: a tenth of a job's size, read without its contract, plan and result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session, load_only

from shared.database.connection import Database
from shared.database.job_states import JobState, Stage
from shared.database.lists.job_filter import JobFilter
from shared.database.lists.pages import page_of_rows
from shared.database.records import Kind, Value
from shared.database.tables.jobs import GpuTimeRow, JobRow
from shared.database.tenancy import TenantName, visible_to
from shared.job_progress import EvaluationProgress, TrainingProgress, read_progress


class JobSummary(Value):
    """A job as lists show it; `GET /v1/jobs/{job_id}` has the rest."""

    id: str
    tenant: str
    kind: Kind
    state: JobState
    stage: Stage | None
    name: str
    base_model: str
    alias: str | None = Field(description="Alias that is moved to its adapter when it succeeds.")
    created_at: datetime
    created_by: str | None = Field(description="Name of the key that submitted it; null: unknown.")
    started_at: datetime | None
    finished_at: datetime | None
    step: int | None = Field(
        description="Steps, shards or items that are done; of a fine-tuning that has succeeded, its optimizer steps."
    )
    total_steps: int | None
    train_loss: float | None = Field(description="Last training loss of a fine-tuning.")
    eta_seconds: float | None
    adapter_id: str | None = Field(description="Adapter that it has registered.")
    model_digest: str | None = Field(description="Merged model that it has stored.")
    alias_moved: bool | None = Field(description="Outcome for the alias: true if it was moved; null: none yet.")
    gpu_minutes: float = Field(description="GPU-minutes used by its attempts that have ended.")
    error: dict[str, Any] | None = Field(description="The error's code, message and `retryable`.")
    labels: dict[str, Any]
    version: int


ERROR_FIELDS = ("code", "message", "retryable")
SUMMARY_COLUMNS = (
    JobRow.id, JobRow.tenant, JobRow.kind, JobRow.state, JobRow.stage, JobRow.name, JobRow.base_model, JobRow.created_at,
    JobRow.created_by,     JobRow.started_at, JobRow.finished_at, JobRow.progress, JobRow.error, JobRow.labels, JobRow.version,
)  # fmt: skip
ALIAS = func.coalesce(JobRow.contract["artifact"]["alias"].as_string(), JobRow.contract["alias"].as_string())
"""A fine-tune job's alias, or an import's."""
OUTCOME = (
    JobRow.result["adapter_id"].as_string(), JobRow.result["model_digest"].as_string(), JobRow.result["alias"]["moved"].as_boolean(),
    JobRow.result["optimizer_steps"].as_integer(), JobRow.result["planned_steps"].as_integer(), JobRow.result["last_train_loss"].as_float(),
)  # fmt: skip


def list_summaries(
    database: Database, tenant: TenantName, which: JobFilter, after: str | None, limit: int
) -> Sequence[JobSummary]:
    """Return a page of the jobs that a tenant sees, newest first; one more than ``limit`` if more follow. No contract,
    plan or result is read.
    """
    query = select(JobRow).where(*which.conditions(is_sqlite=database.is_sqlite))
    query = query.options(load_only(*SUMMARY_COLUMNS))
    if after:
        query = query.where(JobRow.id < after)
    with database.read() as session:
        rows = page_of_rows(session, query, JobRow, visible_to(tenant), limit, newest_first=True)
        extras = _extras(session, [row.id for row in rows])
        return [_summary(row, extras[row.id]) for row in rows]


def read_summaries(database: Database, ids: Sequence[str]) -> Sequence[JobSummary]:
    """Return the summaries of jobs of any tenant; missing jobs are left out."""
    if not ids:
        return []
    query = select(JobRow).options(load_only(*SUMMARY_COLUMNS)).where(JobRow.id.in_(ids))
    with database.read() as session:
        rows = session.scalars(query).all()
        extras = _extras(session, [row.id for row in rows])
        return [_summary(row, extras[row.id]) for row in rows]


class _Extras(NamedTuple):
    alias: str | None
    gpu_seconds: float
    adapter_id: str | None
    model_digest: str | None
    alias_moved: bool | None
    optimizer_steps: int | None
    planned_steps: int | None
    last_train_loss: float | None


def _extras(session: Session, ids: Sequence[str]) -> Mapping[str, _Extras]:
    used = select(func.sum(GpuTimeRow.used)).where(GpuTimeRow.job_id == JobRow.id).scalar_subquery()
    query = select(JobRow.id, ALIAS, func.coalesce(used, 0.0), *OUTCOME).where(JobRow.id.in_(ids))
    return {job_id: _Extras(*values) for job_id, *values in session.execute(query)}


def _summary(row: JobRow, extras: _Extras) -> JobSummary:
    progress = read_progress(row.progress)
    # The last progress of a fine-tuning is that of its self-evaluation.
    steps = progress and (progress.done, progress.total)
    if extras.optimizer_steps is not None:
        steps = extras.optimizer_steps, extras.planned_steps
    loss = progress.loss if isinstance(progress, TrainingProgress) else extras.last_train_loss
    plain = {column.key: getattr(row, column.key) for column in SUMMARY_COLUMNS if column.key != "progress"}
    shown = {
        "alias": extras.alias,
        "adapter_id": extras.adapter_id,
        "model_digest": extras.model_digest,
        "alias_moved": extras.alias_moved,
        "gpu_minutes": round(extras.gpu_seconds / 60, 3),
        "step": steps[0] if steps else None,
        "total_steps": steps[1] if steps else None,
        "train_loss": loss,
        "eta_seconds": progress.eta_seconds if isinstance(progress, TrainingProgress | EvaluationProgress) else None,
        "error": row.error and {name: row.error.get(name) for name in ERROR_FIELDS},
    }
    return JobSummary.model_validate(plain | shown)

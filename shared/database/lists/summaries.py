"""Summaries of jobs: a tenth of a job's size, read without its contract, plan and result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import Field
from sqlalchemy import RowMapping, func, select
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.job_states import JobState, Stage
from shared.database.lists.job_filter import JobFilter
from shared.database.lists.pages import page_of_job_ids
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
    JobRow.created_by, JobRow.started_at, JobRow.finished_at, JobRow.progress, JobRow.error, JobRow.labels, JobRow.version,
)  # fmt: skip
GPU_SECONDS = func.coalesce(
    select(func.sum(GpuTimeRow.used)).where(GpuTimeRow.job_id == JobRow.id).correlate(JobRow).scalar_subquery(), 0.0
)
ALIAS = func.coalesce(JobRow.contract["artifact"]["alias"].as_string(), JobRow.contract["alias"].as_string())
"""A fine-tune job's alias, or an import's."""
OUTCOME = (
    JobRow.result["adapter_id"].as_string().label("adapter_id"),
    JobRow.result["model_digest"].as_string().label("model_digest"),
    JobRow.result["alias"]["moved"].as_boolean().label("alias_moved"),
    JobRow.result["optimizer_steps"].as_integer().label("optimizer_steps"),
    JobRow.result["planned_steps"].as_integer().label("planned_steps"),
    JobRow.result["last_train_loss"].as_float().label("last_train_loss"),
)
SUMMARIES = select(*SUMMARY_COLUMNS, ALIAS.label("alias"), GPU_SECONDS.label("gpu_seconds"), *OUTCOME)
"""Selects columns, not the mapped class: building its objects took most of the time of a page of jobs."""


def list_summaries(
    database: Database, tenant: TenantName, which: JobFilter, after: str | None, limit: int
) -> Sequence[JobSummary]:
    """Return a page of the jobs that a tenant sees, newest first; one more than ``limit`` if more follow. No contract,
    plan or result is read.
    """
    query = select(JobRow.id).where(*which.conditions(is_sqlite=database.is_sqlite))
    if after:
        query = query.where(JobRow.id < after)
    with database.read() as session:
        ids = page_of_job_ids(session, query, visible_to(tenant), limit)
        summaries = _summaries(session, ids)
        return [summaries[job_id] for job_id in ids if job_id in summaries]


def read_summaries(database: Database, ids: Sequence[str]) -> Sequence[JobSummary]:
    """Return the summaries of jobs of any tenant; missing jobs are left out."""
    if not ids:
        return []
    with database.read() as session:
        return list(_summaries(session, ids).values())


def _summaries(session: Session, ids: Sequence[str]) -> Mapping[str, JobSummary]:
    rows = session.execute(SUMMARIES.where(JobRow.id.in_(ids))).mappings()
    return {summary.id: summary for summary in map(_summary, rows)}


def _summary(row: RowMapping) -> JobSummary:
    values = dict(row)
    progress = read_progress(values.pop("progress"))
    optimizer_steps, planned_steps = values.pop("optimizer_steps"), values.pop("planned_steps")
    last_train_loss, gpu_seconds, error = (values.pop(name) for name in ("last_train_loss", "gpu_seconds", "error"))
    # The last progress of a fine-tuning is that of its self-evaluation.
    steps = progress and (progress.done, progress.total)
    if optimizer_steps is not None:
        steps = optimizer_steps, planned_steps
    values |= {
        "gpu_minutes": round(gpu_seconds / 60, 3),
        "step": steps[0] if steps else None,
        "total_steps": steps[1] if steps else None,
        "train_loss": progress.loss if isinstance(progress, TrainingProgress) else last_train_loss,
        "eta_seconds": progress.eta_seconds if isinstance(progress, TrainingProgress | EvaluationProgress) else None,
        "error": error and {name: error.get(name) for name in ERROR_FIELDS},
    }
    return JobSummary.model_validate(values)

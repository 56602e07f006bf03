"""POST /v1/plans:compare: what differs between the plans of fine-tuning jobs, who decided it, and how the runs ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from api.services import ServicesDep
from api.web.params import NO_NUL
from api.web.tenant_view import TenantView, TenantViewDep
from shared.database.lists.summaries import JobSummary, read_summaries
from shared.database.records import Job, Kind
from shared.errors import Code, InvalidRequest

router = APIRouter(prefix="/v1", tags=["jobs"])

MOST_JOBS = 20
NOT_COMPARED = {"contract", "contract_digest", "notes", "version"}
"""Parts of a plan that are not settings. The contract is compared by its own fields."""
RESULTS = (
    "last_train_loss", "last_val_loss",
    "self_evaluation.loss.base", "self_evaluation.loss.tuned",
    "self_evaluation.token_accuracy.base", "self_evaluation.token_accuracy.tuned",
    "optimizer_steps", "trained_tokens", "tokens_per_second",
    "memory.predicted_bytes", "memory.peak_bytes",
)  # fmt: skip
"""Paths in a job's result."""
JobId = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=NO_NUL)]


class ComparePlans(BaseModel):
    """Jobs to compare, and the job that they are compared with."""

    model_config = ConfigDict(extra="forbid")
    jobs: list[JobId] = Field(min_length=1, max_length=MOST_JOBS, description="Ids of fine-tuning jobs.")
    baseline: JobId | None = Field(
        None,
        description="One of these jobs. By default the job whose adapter its alias points to now, otherwise the first.",
    )

    @model_validator(mode="after")
    def _names_each_job_once(self) -> ComparePlans:
        if len(set(self.jobs)) < len(self.jobs):
            raise ValueError("name each job once")
        if self.baseline not in (None, *self.jobs):
            raise ValueError("the baseline must be one of the jobs")
        return self


class ComparedSetting(BaseModel):
    """A field of the contracts, or of the plans, in the order of the jobs."""

    path: str = Field(description="As in `sources` of a plan; fields that only a plan has begin with `plan.`.")
    values: list[Any]
    sources: list[str | None] = Field(description="Source of each value, as in `sources` of a plan; null: unknown.")
    differs: bool


class ComparedResult(BaseModel):
    """A figure of the jobs' results, in the order of the jobs; null: the job has none."""

    path: str
    values: list[float | None]


class PlanComparison(BaseModel):
    """Jobs with their settings and results."""

    object: Literal["plan.comparison"] = "plan.comparison"
    jobs: list[JobSummary]
    baseline: str
    rows: list[ComparedSetting]
    results: list[ComparedResult]


@router.post("/plans:compare")
def compare_plans(body: ComparePlans, services: ServicesDep, view: TenantViewDep) -> PlanComparison:
    """Compare the settings and results of fine-tuning jobs, 20 at most."""
    jobs = [view.job(job_id) for job_id in body.jobs]
    for place, job in enumerate(jobs):
        if job.kind is not Kind.FINETUNE:
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"{job.id} is a job of the kind {str(job.kind)!r}, which has no training to compare.",
                remedy="Name fine-tuning jobs only.",
                param=f"jobs.{place}",
            )
    summaries = {summary.id: summary for summary in read_summaries(services.database, body.jobs)}
    sources = [view.jobs.preflight(job.id).get("sources", {}) for job in jobs]
    return PlanComparison(
        jobs=[summaries[job.id] for job in jobs],
        baseline=body.baseline or _incumbent(view, jobs),
        rows=_settings(jobs, sources),
        results=list(_results(jobs, [summaries[job.id].gpu_minutes for job in jobs])),
    )


def _incumbent(view: TenantView, jobs: Sequence[Job]) -> str:
    """Return the job whose adapter its alias points to now; else the first."""
    for job in jobs:
        name = job.contract.get("artifact", {}).get("alias")
        alias = view.aliases.find(name) if name else None
        if alias and alias.adapter_id == job.result.get("adapter_id"):
            return job.id
    return jobs[0].id


def _settings(jobs: Sequence[Job], sources: Sequence[Mapping[str, str]]) -> list[ComparedSetting]:
    """Return every field that at least one of the jobs has."""
    fields = [dict(_fields_of(job)) for job in jobs]
    paths = dict.fromkeys(path for values_of_job in fields for path in values_of_job)
    rows = []
    for path in paths:
        values = [values_of_job.get(path) for values_of_job in fields]
        decided = [_source(job_sources, path) for job_sources in sources]
        differs = any(value != values[0] for value in values)
        rows.append(ComparedSetting(path=path, values=values, sources=decided, differs=differs))
    return rows


def _source(sources: Mapping[str, str], path: str) -> str | None:
    """Return who decided a field: the source of its path, or of the nearest enclosing field, since a value within an
    object has no source of its own.
    """
    while path and path not in sources:
        path = path.rpartition(".")[0]
    return sources.get(path)


def _fields_of(job: Job) -> Iterator[tuple[str, Any]]:
    yield from _flat(job.contract)
    yield from _flat({name: part for name, part in job.plan.items() if name not in NOT_COMPARED}, "plan.")


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _results(jobs: Sequence[Job], gpu_minutes: Sequence[float]) -> Iterator[ComparedResult]:
    """Yield the figures that at least one of the jobs has."""
    figures: dict[str, list[float | None]] = {path: [_number(job.result, path) for job in jobs] for path in RESULTS}
    figures["seconds"] = [
        (job.finished_at - job.started_at).total_seconds() if job.started_at and job.finished_at else None
        for job in jobs
    ]
    figures["gpu_minutes"] = list(gpu_minutes)
    equal = [_equal_answers(job.result) for job in jobs]
    figures["sample_answers.equal"] = [answers[0] if answers else None for answers in equal]
    figures["sample_answers.rows"] = [answers[1] if answers else None for answers in equal]
    for path, values in figures.items():
        if any(value is not None for value in values):
            yield ComparedResult(path=path, values=values)


def _number(result: Mapping[str, Any], path: str) -> float | None:
    value: Any = result
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _equal_answers(result: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return how many sample answers equal the reference, and the number of samples; None if the run did not draw any."""
    samples = (result.get("self_evaluation") or {}).get("sample_answers") or []
    equal = [str(sample.get("tuned") or "").strip() == str(sample.get("reference") or "").strip() for sample in samples]
    return (sum(equal), len(equal)) if equal else None

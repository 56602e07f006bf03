"""OpenAI's evals and runs: requests, answers, and the translation from our own.

If the clients' strict types accept more than OpenAI's own server sends, null stays null (docs/evaluation.md lists the
cases).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, StringConstraints

from api.openai.types import ClosedObject, EvalApiError, Metadata, unix_seconds
from shared.database.evaluation.evals import Eval
from shared.database.evaluation.runs import EvalRun
from shared.database.job_states import JobState
from shared.database.records import Job
from shared.evaluation.criteria import line_schema
from shared.evaluation.plan import EvaluationPlan
from shared.evaluation.results import Totals
from shared.evaluation.types import EvalSpec, RunSpec, SourceItem
from shared.job_progress import shown_progress

RunStatus = Literal["queued", "in_progress", "completed", "canceled", "failed"]
STATUS_OF: dict[JobState, RunStatus] = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.PAUSED: "queued",  # OpenAI has no such status; the `mens` block has ours
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "canceled",
}
ObjectName = Annotated[str, StringConstraints(max_length=256)]


class CreateEval(EvalSpec):
    """Request for an eval."""

    name: ObjectName | None = None
    metadata: Metadata | None = None

    def spec(self) -> EvalSpec:
        """The eval's data source and criteria."""
        return EvalSpec(data_source_config=self.data_source_config, testing_criteria=self.testing_criteria)


class UpdateEval(ClosedObject):
    """Change of an eval's name or metadata; its data source and criteria stay."""

    name: ObjectName | None = None
    metadata: Metadata | None = None


class CreateEvalRun(RunSpec):
    """Request for a run of an eval."""

    name: ObjectName | None = None
    metadata: Metadata | None = None

    def spec(self) -> RunSpec:
        """The run's data source and models."""
        return RunSpec(data_source=self.data_source, mens=self.mens)


class EvalObject(BaseModel):
    id: str
    object: Literal["eval"] = "eval"
    created_at: int
    name: str
    metadata: dict[str, str]
    data_source_config: dict[str, Any]
    testing_criteria: list[dict[str, Any]]
    mens: dict[str, Any]


class EvalDeleted(BaseModel):
    object: Literal["eval.deleted"] = "eval.deleted"
    deleted: bool = True
    eval_id: str


class EvalRunDeleted(BaseModel):
    object: Literal["eval.run.deleted"] = "eval.run.deleted"
    deleted: bool = True
    run_id: str


class ResultCounts(BaseModel):
    total: int
    errored: int
    failed: int
    passed: int


class PerModelUsage(BaseModel):
    model_name: str
    invocation_count: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


class PerCriterionResult(BaseModel):
    testing_criteria: str
    passed: int
    failed: int


class EvalRunObject(BaseModel):
    id: str
    object: Literal["eval.run"] = "eval.run"
    created_at: int
    eval_id: str
    name: str
    model: str
    status: RunStatus
    data_source: dict[str, Any]
    error: EvalApiError | None
    metadata: dict[str, str]
    report_url: str
    result_counts: ResultCounts
    per_model_usage: list[PerModelUsage]
    per_testing_criteria_results: list[PerCriterionResult]
    mens: dict[str, Any]


def eval_view(evaluation: Eval) -> EvalObject:
    """Return an eval in OpenAI's shape."""
    spec = EvalSpec.model_validate(evaluation.spec)
    config: dict[str, Any] = {"type": spec.data_source_config.type, "schema": line_schema(spec.data_source_config)}
    if metadata := getattr(spec.data_source_config, "metadata", None):
        config["metadata"] = metadata
    return EvalObject(
        id=evaluation.id,
        created_at=unix_seconds(evaluation.created_at),
        name=evaluation.name,
        metadata=evaluation.labels,
        data_source_config=config,
        testing_criteria=[criterion.model_dump(mode="json", exclude_none=True) for criterion in spec.testing_criteria],
        mens={"tenant": evaluation.tenant, "updated_at": unix_seconds(evaluation.updated_at)},
    )


def run_view(run: EvalRun, job: Job, report_url: str, content: list[SourceItem] | None = None) -> EvalRunObject:
    """Return a run in OpenAI's shape.

    Args:
        run: the stored run.
        job: the job that executes it.
        report_url: URL of its page.
        content: rows that were sent in the request; None if they are not read again: their file then stands for them.
    """
    plan = EvaluationPlan.model_validate(run.plan)
    totals = Totals.model_validate(run.totals or Totals.of(plan))
    source = dict(plan.data_source)
    if content is not None:
        rows = [row.model_dump(mode="json", exclude_none=True) for row in content]
        source["source"] = {"type": "file_content", "content": rows}
    error = (
        EvalApiError(code=job.error["code"], message=f"{job.error['message']} {job.error['remedy']}".strip())
        if job.error
        else None
    )
    return EvalRunObject(
        id=run.id,
        created_at=unix_seconds(run.created_at),
        eval_id=run.eval_id,
        name=run.name,
        model=plan.models[0].name if plan.models else "",
        status=STATUS_OF[job.state],
        data_source=source,
        error=error,
        metadata=job.labels,
        report_url=report_url,
        result_counts=ResultCounts(
            total=totals.done, errored=totals.errored, failed=totals.failed, passed=totals.passed
        ),
        per_model_usage=[PerModelUsage(model_name=name, **usage.model_dump()) for name, usage in totals.usage.items()],
        per_testing_criteria_results=[
            PerCriterionResult(testing_criteria=name, passed=total.passed, failed=total.failed)
            for name, total in totals.criteria.items()
        ],
        mens=_run_facts(run, job, plan, totals),
    )


def _run_facts(run: EvalRun, job: Job, plan: EvaluationPlan, totals: Totals) -> dict[str, Any]:
    """Return the facts of a run that OpenAI's shape has no field for."""
    return {
        "job_id": run.job_id,
        "state": job.state,
        "stage": job.stage,
        "requested": job.requested,
        "progress": shown_progress(job.progress),
        "items": plan.items.count,
        "items_file": plan.items.file_id,
        "answers": plan.answers,
        "samples": plan.samples,
        "seed": plan.seed,
        "noise_floor": plan.noise_floor,
        "models": [target.model_dump() for target in plan.models],
        "estimate": job.extra.get("estimate"),
        "criteria": {name: total.model_dump() for name, total in totals.criteria.items()},
        "incumbent_criteria": {name: total.model_dump() for name, total in totals.incumbent_criteria.items()},
        "margin": plan.margin,
        "comparisons": job.result.get("comparisons", {}),
        "unrepeatable": totals.unrepeatable,
        "plan_digest": plan.digest,
        "error": job.error,
    }

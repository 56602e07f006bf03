"""OpenAI's evals API: /v1/evals, with runs and output items. A run is a job of kind ``evaluate``, and GET /v1/jobs lists it."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, status
from fastapi.datastructures import URL

from api.evaluation import read_content, submit_run
from api.openai.evals import (
    STATUS_OF,
    CreateEval,
    CreateEvalRun,
    EvalDeleted,
    EvalObject,
    EvalRunDeleted,
    EvalRunObject,
    RunStatus,
    UpdateEval,
    eval_view,
    run_view,
)
from api.openai.output_items import OutputItem, item_position, item_view
from api.services import Services, ServicesDep
from api.web.auth import TRAINER
from api.web.params import Id, IdempotencyKey, IdPage, ListingDep, id_page_fields
from api.web.tenant_rates import PLAN_LIMIT
from api.web.tenant_view import TenantViewDep
from shared.database.evaluation.runs import EvalRun
from shared.database.records import Job, Kind
from shared.errors import Code, Conflict
from shared.evaluation.criteria import check_eval
from shared.evaluation.plan import EvaluationPlan

router = APIRouter(prefix="/v1/evals", tags=["evals (OpenAI)"])


class EvalPage(IdPage[EvalObject]):
    """One page of evals, with the ids of its first and last."""


class EvalRunPage(IdPage[EvalRunObject]):
    """One page of runs, with the ids of its first and last."""


class OutputItemPage(IdPage[OutputItem]):
    """One page of output items, with the ids of its first and last."""


@router.post("", status_code=status.HTTP_201_CREATED, dependencies=[*TRAINER, PLAN_LIMIT])
def create_eval(body: CreateEval, view: TenantViewDep) -> EvalObject:
    """Create an eval. Its criteria are checked against the schema of its items."""
    spec = body.spec()
    check_eval(spec)
    return eval_view(
        view.evals.create(body.name or "", body.metadata or {}, spec.model_dump(mode="json", exclude_none=True))
    )


@router.get("")
def list_evals(
    view: TenantViewDep, page: ListingDep, order_by: Literal["created_at", "updated_at"] = "created_at"
) -> EvalPage:
    """Evals, the oldest first by default."""
    evals = view.evals.list(after=page.after, limit=page.limit, newest_first=page.newest_first, order_by=order_by)
    shown = [eval_view(item) for item in evals[: page.limit]]
    return EvalPage(**id_page_fields(shown, has_more=len(evals) > page.limit))


@router.get("/{eval_id}")
def retrieve_eval(eval_id: Id, view: TenantViewDep) -> EvalObject:
    """One eval."""
    return eval_view(view.evals.get(eval_id))


@router.post("/{eval_id}", dependencies=TRAINER)
def update_eval(eval_id: Id, body: UpdateEval, view: TenantViewDep) -> EvalObject:
    """Change an eval's name or metadata."""
    return eval_view(view.evals.update(eval_id, name=body.name, labels=body.metadata))


@router.delete("/{eval_id}", dependencies=TRAINER)
def delete_eval(eval_id: Id, view: TenantViewDep) -> EvalDeleted:
    """Delete an eval with its runs and their output items. Refused while a run of it has not ended."""
    view.evals.delete(eval_id)
    return EvalDeleted(eval_id=eval_id)


@router.post("/{eval_id}/runs", status_code=status.HTTP_201_CREATED, dependencies=[*TRAINER, PLAN_LIMIT])
def create_run(
    eval_id: Id,
    body: CreateEvalRun,
    request: Request,
    services: ServicesDep,
    view: TenantViewDep,
    idempotency_key: IdempotencyKey = None,
) -> EvalRunObject:
    """Run an eval. Models, criteria and every item are checked before the run is queued; `mens.estimate` says what it costs."""
    judged, labels = view.evals.get(eval_id), body.metadata or {}
    name, spec = body.name or "", body.spec()
    job = submit_run(services, view, judged, spec, name=name, labels=labels, idempotency_key=idempotency_key)
    return _view_of(services, request.base_url, *view.eval_runs.get(eval_id, job.id))


@router.get("/{eval_id}/runs")
def list_runs(
    eval_id: Id, request: Request, view: TenantViewDep, page: ListingDep, status: RunStatus | None = None
) -> EvalRunPage:
    """Runs of an eval, the oldest first by default. For rows that were sent with a run, the list shows the file that
    was made of them.
    """
    view.evals.get(eval_id)
    states = None if status is None else [state for state, name in STATUS_OF.items() if name == status]
    runs = view.eval_runs.list(
        eval_id, after=page.after, limit=page.limit, newest_first=page.newest_first, states=states
    )
    shown = [run_view(run, job, _url(request.base_url, run)) for run, job in runs[: page.limit]]
    return EvalRunPage(**id_page_fields(shown, has_more=len(runs) > page.limit))


@router.get("/{eval_id}/runs/{run_id}")
def retrieve_run(
    eval_id: Id, run_id: Id, request: Request, services: ServicesDep, view: TenantViewDep
) -> EvalRunObject:
    """One run, with its counts so far."""
    return _view_of(services, request.base_url, *view.eval_runs.get(eval_id, run_id))


@router.delete("/{eval_id}/runs/{run_id}", dependencies=TRAINER)
def delete_run(eval_id: Id, run_id: Id, view: TenantViewDep) -> EvalRunDeleted:
    """Delete a run that has ended, and its output items; its job stays."""
    view.eval_runs.delete(eval_id, run_id)
    return EvalRunDeleted(run_id=run_id)


@router.post("/{eval_id}/runs/{run_id}/cancel", dependencies=TRAINER)
@router.post("/{eval_id}/runs/{run_id}", dependencies=TRAINER)
def cancel_run(eval_id: Id, run_id: Id, request: Request, services: ServicesDep, view: TenantViewDep) -> EvalRunObject:
    """Cancel a run. Finished output items are kept. (Python's client calls the first path, Node's and the specification the second.)"""
    run, job = view.eval_runs.get(eval_id, run_id)
    if job.kind is not Kind.EVALUATE:
        raise Conflict(
            Code.JOB_STATE_CONFLICT,
            f"The run {run_id} is part of the {job.kind} job {job.id}.",
            remedy=f"Cancel that job: POST /v1/jobs/{job.id}/cancel.",
        )
    return _view_of(services, request.base_url, run, view.change_job(view.jobs.cancel, job.id))


@router.get("/{eval_id}/runs/{run_id}/output_items")
def list_output_items(
    eval_id: Id,
    run_id: Id,
    view: TenantViewDep,
    page: ListingDep,
    status: Literal["pass", "fail", "error"] | None = None,
) -> OutputItemPage:
    """List a run's output items, in the order of the items."""
    run, _ = view.eval_runs.get(eval_id, run_id)
    cursor = None if page.after is None else item_position(run_id, page.after)
    items = view.eval_items.list(run_id, after=cursor, limit=page.limit, newest_first=page.newest_first, status=status)
    shown = [item_view(run, item) for item in items[: page.limit]]
    return OutputItemPage(**id_page_fields(shown, has_more=len(items) > page.limit))


@router.get("/{eval_id}/runs/{run_id}/output_items/{output_item_id}")
def retrieve_output_item(eval_id: Id, run_id: Id, output_item_id: Id, view: TenantViewDep) -> OutputItem:
    """Return one output item."""
    run, _ = view.eval_runs.get(eval_id, run_id)
    return item_view(run, view.eval_items.get(run_id, item_position(run_id, output_item_id)))


def _view_of(services: Services, base: URL, run: EvalRun, job: Job) -> EvalRunObject:
    content = read_content(services, EvaluationPlan.model_validate(run.plan))
    return run_view(run, job, _url(base, run), content)


def _url(base: URL, run: EvalRun) -> str:
    """Return the URL of the run's own page."""
    return f"{base}v1/evals/{run.eval_id}/runs/{run.id}"

"""OpenAI's fine-tuning surface: /v1/fine_tuning/jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request

from api.authentication import requires
from api.ids import Id
from api.openai_types import CreateFineTuningJob, FineTuningCheckpoint, FineTuningEvent, FineTuningJob
from api.openai_view import (
    CHECKPOINT_PREFIX,
    checkpoint_view,
    event_seq,
    event_view,
    job_view,
    to_contract,
    to_field,
    to_name,
)
from api.pages import After, Limit, Page, page_of
from api.scope import Scope, ScopeDep
from api.services import ServicesDep
from api.submission import submit_finetune
from shared.errors import Code, MensError, NotFound
from shared.job import Job, Kind
from shared.preflight import Asked
from shared.storage import Storage
from shared.tenancy import Role

router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["fine-tuning (OpenAI)"])

TRAINER = [requires(Role.TRAINER)]
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)]


@router.post("", dependencies=TRAINER)
def create_job(
    body: CreateFineTuningJob, services: ServicesDep, scope: ScopeDep, idempotency_key: IdempotencyKey = None
) -> FineTuningJob:
    """Create a fine-tuning job. ``auto`` values are resolved by the rules of docs/openai.md and echoed."""
    base = services.catalog().get(body.model)
    rows = _count_rows(scope, services.storage, body.training_file)
    contract, hyperparameters = to_contract(body, rows, base.learning_rate)
    try:
        job = submit_finetune(
            services,
            scope,
            Asked(contract.model_dump(mode="json", exclude_unset=True), name=to_name(body.suffix)),
            labels=body.metadata or {},
            idempotency_key=idempotency_key,
            hyperparameters=hyperparameters,
        )
    except MensError as error:
        error.param = to_field(error.param)
        raise
    return job_view(job)


@router.get("")
def list_jobs(request: Request, scope: ScopeDep, after: After = None, limit: Limit = 20) -> Page[FineTuningJob]:
    """Fine-tuning jobs, newest first; ``metadata[key]=value`` filters."""
    labels = {
        key.removeprefix("metadata[").removesuffix("]"): value
        for key, value in request.query_params.items()
        if key.startswith("metadata[") and key.endswith("]")
    }
    jobs = scope.ledger.list_jobs(after=after, limit=limit, kind=Kind.FINETUNE, labels=labels)
    return page_of([job_view(job) for job in jobs], limit)


@router.get("/{job_id}")
def retrieve_job(job_id: Id, scope: ScopeDep) -> FineTuningJob:
    """One fine-tuning job."""
    return job_view(_finetune_job(scope, job_id))


@router.post("/{job_id}/cancel", dependencies=TRAINER)
def cancel_job(job_id: Id, scope: ScopeDep) -> FineTuningJob:
    """Cancel a job. One that is running stops after the step at hand."""
    _finetune_job(scope, job_id)
    return job_view(scope.ledger.cancel(job_id))


@router.post("/{job_id}/pause", dependencies=TRAINER)
def pause_job(job_id: Id, scope: ScopeDep) -> FineTuningJob:
    """Pause a job. One that is running first writes a checkpoint."""
    _finetune_job(scope, job_id)
    return job_view(scope.ledger.pause(job_id))


@router.post("/{job_id}/resume", dependencies=TRAINER)
def resume_job(job_id: Id, services: ServicesDep, scope: ScopeDep) -> FineTuningJob:
    """Resume a paused job from its checkpoint."""
    _finetune_job(scope, job_id)
    job = scope.ledger.resume(job_id)
    services.doorbell.ring(job.id)
    return job_view(job)


@router.get("/{job_id}/events")
def list_events(job_id: Id, scope: ScopeDep, after: After = None, limit: Limit = 20) -> Page[FineTuningEvent]:
    """Events of a job, newest first."""
    _finetune_job(scope, job_id)
    events = scope.ledger.recent_events(job_id, before=event_seq(after), limit=limit)
    return page_of([event_view(event) for event in events], limit)


@router.get("/{job_id}/checkpoints")
def list_checkpoints(job_id: Id, scope: ScopeDep, after: After = None, limit: Limit = 10) -> Page[FineTuningCheckpoint]:
    """Checkpoints of a job, newest first; each one's model id can be used as ``model``."""
    job = _finetune_job(scope, job_id)
    adapters = scope.registry.adapters(ids=job.result.get("adapters", []))
    views = [checkpoint_view(adapter, job_id) for adapter in adapters]
    ids = [view.id for view in views]
    start = ids.index(after) + 1 if after and after.startswith(CHECKPOINT_PREFIX) and after in ids else 0
    return page_of(views[start : start + limit + 1], limit)


def _finetune_job(scope: Scope, job_id: str) -> Job:
    """The job, if it is of the one kind that OpenAI knows."""
    job = scope.job(job_id)
    if job.kind is not Kind.FINETUNE:
        raise NotFound(
            Code.JOB_NOT_FOUND, f"{job_id} is a {job.kind} job.", remedy=f"Look at it with GET /v1/jobs/{job_id}."
        )
    return job


def _count_rows(scope: Scope, storage: Storage, file_id: str) -> int:
    """Lines of the training file; the ``auto`` rules need no more than their number."""
    file = scope.registry.file(file_id, "training_file")
    with storage.open_blob(file.sha256).open("rb") as lines:
        return sum(1 for _ in lines)

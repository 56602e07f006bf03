"""OpenAI's fine-tuning API: /v1/fine_tuning/jobs."""

from __future__ import annotations

from fastapi import APIRouter, Request

from api.openai.fine_tuning import (
    CHECKPOINT_PREFIX,
    CONTINUE_FIELD,
    auto_fields,
    checkpoint_view,
    event_seq,
    event_view,
    job_view,
    to_contract,
    to_field,
    to_name,
)
from api.openai.types import CreateFineTuningJob, FineTuningCheckpoint, FineTuningEvent, FineTuningJob
from api.services import Services, ServicesDep
from api.submission import check_priority, find_parent, submit_finetune
from api.web.auth import TRAINER, CallerDep
from api.web.params import After, Id, IdempotencyKey, Limit, Page, page_of
from api.web.tenant_rates import PLAN_LIMIT
from api.web.tenant_view import TenantView, TenantViewDep
from shared.base_models.catalog import BaseModelEntry
from shared.contract.parent import PlannedParent
from shared.contract.sections import DEFAULT_MODEL_ID
from shared.database.lists.job_filter import JobFilter
from shared.database.records import Job, Kind
from shared.datasets.reader import count_lines
from shared.errors import Code, ContractRejected, InvalidRequest, MensError, NotFound
from shared.model_card.self_evaluation import without_samples
from shared.preflight.types import JobRequest

router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["fine-tuning (OpenAI)"])

MAX_FILTERS = 16


@router.post("", dependencies=[*TRAINER, PLAN_LIMIT])
def create_job(
    body: CreateFineTuningJob,
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
) -> FineTuningJob:
    """Create a fine-tuning job. ``auto`` values are resolved by the rules of docs/openai.md and returned resolved."""
    check_priority(caller, body.mens.priority)
    base, continues = _start(services, view, body)
    # The `auto` rules need no more of the training file than its number of lines.
    file = view.files.get(body.training_file, "training_file")
    with services.storage.open_blob(file.sha256) as content:
        lines = count_lines(content)
    contract, hyperparameters = to_contract(body, base, lines, continues)
    try:
        job = submit_finetune(
            services,
            view,
            JobRequest(
                contract, name=to_name(body.suffix), train_lines=lines, auto=auto_fields(body), batch_is_step=True
            ),
            labels=body.metadata or {},
            idempotency_key=idempotency_key,
            hyperparameters=hyperparameters,
            requested_model=None if body.model == base.name else body.model,
            terms=body.mens.terms(),
        )
    except MensError as error:
        error.param = to_field(error.param, continues)
        raise
    return job_view(job)


@router.get("")
def list_jobs(
    request: Request, services: ServicesDep, view: TenantViewDep, after: After = None, limit: Limit = 20
) -> Page[FineTuningJob]:
    """Fine-tuning jobs, newest first; ``metadata[key]=value`` filters, and ``metadata=null`` for jobs without metadata."""
    parameters = request.query_params
    labels = {
        key.removeprefix("metadata[").removesuffix("]"): value
        for key, value in parameters.items()
        if key.startswith("metadata[") and key.endswith("]")
    }
    if len(labels) > MAX_FILTERS:
        message = f"The request has {len(labels)} metadata filters; the maximum is {MAX_FILTERS}."
        remedy = f"Send at most {MAX_FILTERS} metadata filters."
        raise InvalidRequest(Code.REQUEST_INVALID, message, remedy=remedy, param="metadata")
    if parameters.get("metadata") not in (None, "null"):
        message = "write a metadata filter as `metadata[key]=value`, or `metadata=null` for jobs without metadata."
        raise InvalidRequest(Code.REQUEST_INVALID, message, param="metadata")
    which = JobFilter(kind=Kind.FINETUNE, labels=labels, has_labels=False if "metadata" in parameters else None)
    jobs = view.jobs.list(which, after=after, limit=limit)
    shown = [job.model_copy(update={"result": without_samples(job.result)}) for job in jobs]
    return page_of([job_view(job, services.queue_places.of(job)) for job in shown], limit)


@router.get("/{job_id}")
def retrieve_job(job_id: Id, services: ServicesDep, view: TenantViewDep) -> FineTuningJob:
    """One fine-tuning job."""
    job = _finetune_job(view, job_id)
    return job_view(job, services.queue_places.of(job))


@router.post("/{job_id}/cancel", dependencies=TRAINER)
def cancel_job(job_id: Id, view: TenantViewDep) -> FineTuningJob:
    """Cancel a job. A running job stops after its current step."""
    _finetune_job(view, job_id)
    return job_view(view.change_job(view.jobs.cancel, job_id))


@router.post("/{job_id}/pause", dependencies=TRAINER)
def pause_job(job_id: Id, view: TenantViewDep) -> FineTuningJob:
    """Pause a job. A running job writes a checkpoint first."""
    _finetune_job(view, job_id)
    return job_view(view.change_job(view.jobs.pause, job_id))


@router.post("/{job_id}/resume", dependencies=TRAINER)
def resume_job(job_id: Id, services: ServicesDep, view: TenantViewDep) -> FineTuningJob:
    """Resume a paused job from its checkpoint."""
    _finetune_job(view, job_id)
    job = view.change_job(view.jobs.resume, job_id)
    services.job_queue.enqueue(job.id)
    return job_view(job)


@router.get("/{job_id}/events")
def list_events(job_id: Id, view: TenantViewDep, after: After = None, limit: Limit = 20) -> Page[FineTuningEvent]:
    """Events of a job, newest first."""
    _finetune_job(view, job_id)
    events = view.jobs.recent_events(job_id, before=event_seq(after), limit=limit)
    return page_of([event_view(event) for event in events], limit)


@router.get("/{job_id}/checkpoints")
def list_checkpoints(
    job_id: Id, view: TenantViewDep, after: After = None, limit: Limit = 10
) -> Page[FineTuningCheckpoint]:
    """Checkpoints of a job, newest first, also while it runs. The model id of each can be used as ``model``."""
    job = _finetune_job(view, job_id)
    views = [checkpoint_view(adapter, job) for adapter in view.checkpoints(job)]
    ids = [view.id for view in views]
    start = ids.index(after) + 1 if after and after.startswith(CHECKPOINT_PREFIX) and after in ids else 0
    return page_of(views[start : start + limit + 1], limit)


def _start(services: Services, view: TenantView, body: CreateFineTuningJob) -> tuple[BaseModelEntry, bool]:
    """Return the base of a requested job, and whether ``model`` names a tuned model that the job continues from.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``: a second adapter to continue from.
    """
    named = body.mens.adapter.get("continue_from")
    try:
        if body.model is None and isinstance(named, str):
            return services.catalog().get(find_parent(view, named, CONTINUE_FIELD).base_model), False
        return _base(services, view, body.model), False
    except NotFound:
        parent = _parent(view, body.model)
        if parent is None:
            raise
    if named is not None:
        raise ContractRejected(
            Code.CONTRACT_INVALID,
            f"{CONTINUE_FIELD} is {named!r}, and `model` is the tuned model {body.model!r}: a job can continue only "
            "from one of them.",
            remedy="Name the tuned model in `model` alone.",
            param=CONTINUE_FIELD,
        )
    return services.catalog().get(parent.base_model), True


def _parent(view: TenantView, model: str | None) -> PlannedParent | None:
    """Return the tuned model that ``model`` names; None if it names none."""
    try:
        return find_parent(view, model, "model") if model else None
    except NotFound:
        return None


def _base(services: Services, view: TenantView, model: str | None) -> BaseModelEntry:
    """Return the base that a request's ``model`` refers to: its own name, or a foreign name that an admin has mapped to
    it.

    Without a model, :meth:`Catalog.get_default` chooses the base.
    """
    catalog = services.catalog()
    if model is None:
        return catalog.get_default(DEFAULT_MODEL_ID, services.replicas.serves_adapters_of)
    name = None if any(base.name == model for base in catalog.bases) else view.names.find(model)
    if name and name.stands_for.kind == "base":
        return catalog.get(name.stands_for.name)
    try:
        return catalog.get(model)
    except NotFound as error:
        error.remedy = f"{error.remedy} An admin can map another provider's name to a base: PUT /v1/names/NAME."
        raise


def _finetune_job(view: TenantView, job_id: str) -> Job:
    """Return the job, if it is of the only kind in OpenAI's API."""
    job = view.job(job_id)
    if job.kind is not Kind.FINETUNE:
        raise NotFound(
            Code.JOB_NOT_FOUND, f"{job_id} is a {job.kind} job.", remedy=f"Look at it with GET /v1/jobs/{job_id}."
        )
    return job

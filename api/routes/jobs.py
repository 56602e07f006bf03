"""The native API of jobs: /v1/jobs, /v1/plans, /v1/contract/schema."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Response, status
from fastapi.responses import PlainTextResponse
from pydantic import AliasChoices, AwareDatetime, BaseModel, ConfigDict, Discriminator, Field, StrictInt, Tag

from api.capabilities import CapabilityMatrix, capabilities_here
from api.errors import UNKNOWN_KIND, ErrorAnswer, declared_of_other_type
from api.evaluation import submit_run
from api.openai.fine_tuning import event_seq
from api.openai.types import Metadata
from api.polling.job_changes import CURSOR_HEADER, HAS_CURSOR
from api.polling.queue_places import QueuePlace, job_etag, page_etag
from api.services import ServicesDep
from api.submission import (
    check_contract,
    check_priority,
    submit_finetune,
    submit_import,
    submit_merge,
    submit_rows,
)
from api.web.auth import TRAINER, CallerDep
from api.web.params import NO_NUL, After, Id, IdempotencyKey, Limit, Page, WholeList
from api.web.tenant_rates import PLAN_LIMIT
from api.web.tenant_view import TenantViewDep
from shared.contract.contracts import FineTuneContract, ImportContract, MergeContract
from shared.contract.plan import ExecutionPlan
from shared.contract.values import Name
from shared.database.adapters import Adapter
from shared.database.job_states import JobState
from shared.database.lists.job_filter import JobFilter
from shared.database.lists.summaries import JobSummary
from shared.database.records import Event, Job, Kind, MemoryAccuracy, QueueTerms
from shared.evaluation.types import RunSpec
from shared.model_card.self_evaluation import without_samples
from shared.preflight.types import JobRequest
from shared.scheduling.types import HIGHEST_PRIORITY, LOWEST_PRIORITY
from shared.worker_registry import WorkerMachine

router = APIRouter(prefix="/v1", tags=["jobs"])

EVENTS_PER_POLL = 500
LOG_BYTES = 1 << 16
POLLED: dict[int | str, dict[str, Any]] = {**HAS_CURSOR, 304: {"description": "Not changed."}}
Text = Annotated[str | None, Query(max_length=128, pattern=NO_NUL)]


class CreateFinetune(QueueTerms):
    """Request for a fine-tune job, with its full contract."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["finetune"] = "finetune"
    contract: FineTuneContract
    preset: str | None = Field(None, description="Preset for the fields that the contract leaves open, or `auto`.")
    domain: str | None = Field(None, description="Domain profile; it takes precedence over the preset.")
    name: Name | None = Field(None, description="First part of the adapter's id; exec.adapter_tag when null.")
    backend: str | None = Field(None, description="A training backend; it must match the contract.")
    auto: list[str] = Field(
        [], description="Fields of the contract that were set by a client's auto rules, not by its user."
    )
    hyperparameters: Literal["defaults", "auto"] = Field(
        "defaults",
        description="`auto`: batch size, epochs and learning rate that the contract leaves open follow the base and the rows, as in"
        " `mens train`, unless a preset or domain is named.",
    )
    metadata: Metadata = {}

    def request(self) -> JobRequest:
        """Return the contract with its presets."""
        return JobRequest(
            self.contract,
            self.preset,
            self.domain,
            self.name,
            backend=self.backend,
            auto=frozenset(self.auto),
            has_auto_rules=self.hyperparameters == "auto",
        )


class CreateMerge(QueueTerms):
    """Request for a merge job."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["merge"]
    contract: MergeContract
    metadata: Metadata = {}


class CreateImport(QueueTerms):
    """Request for an import job: an adapter in the original's layout becomes one that is served here."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["import"]
    contract: ImportContract
    metadata: Metadata = {}


class CreateFromRows(QueueTerms):
    """Request for a fine-tune job in one flat object, with its rows: every other key is a flat name of a contract's field."""

    model_config = ConfigDict(extra="allow")
    model: str = Field(
        min_length=1,
        validation_alias=AliasChoices("model", "base"),
        description="Name of the base model; the key may also be `base`.",
    )
    data: list[dict[str, Any]] = Field(
        min_length=1,
        validation_alias=AliasChoices("data", "dataset"),
        description="Training rows, as in a JSONL file; the key may also be `dataset`.",
    )
    preset: str | None = None
    domain: str | None = None
    name: Name | None = None
    metadata: Metadata = {}

    def request(self, contract: FineTuneContract) -> JobRequest:
        """Return the job request for the contract in the flat keys."""
        return JobRequest(contract, self.preset, self.domain, self.name, train_lines=len(self.data))

    def flat(self) -> dict[str, Any]:
        """Return the keys of the contract."""
        return {"model": self.model, **(self.model_extra or {})}


class CreateEvaluation(QueueTerms):
    """Request for an evaluate job: a run of an eval, as POST /v1/evals/{id}/runs makes one."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["evaluate"]
    eval: str = Field(min_length=1, max_length=256, description="Id of the eval.")
    run: RunSpec
    name: str = Field("", max_length=256)
    metadata: Metadata = {}


KINDS = ("finetune", "merge", "import", "evaluate")
"""Values of ``kind`` that a caller may send."""


def _kind_of(body: Any) -> str:
    """Return the kind of a request's body: a body without a kind and a contract is flat."""
    if isinstance(body, CreateMerge | CreateImport | CreateEvaluation):
        return body.kind
    if isinstance(body, CreateFromRows):
        return "rows"
    if not isinstance(body, dict):
        return "finetune"
    if "kind" not in body and "contract" not in body and ("data" in body or "dataset" in body):
        return "rows"
    return str(body.get("kind", "finetune"))


CreateJob = Annotated[
    Annotated[CreateFinetune, Tag("finetune")]
    | Annotated[CreateMerge, Tag("merge")]
    | Annotated[CreateImport, Tag("import")]
    | Annotated[CreateEvaluation, Tag("evaluate")]
    | Annotated[CreateFromRows, Tag("rows")],
    Discriminator(
        _kind_of, custom_error_type=UNKNOWN_KIND, custom_error_message=f"it is not one of {', '.join(KINDS)}"
    ),
]


class PlanRequest(CreateFinetune):
    """Request for a dry run of a fine-tune job: the same body as for `POST /v1/jobs`."""


class PlanAnswer(BaseModel):
    """The execution plan that the contract would get, and everything that was found while planning."""

    plan: ExecutionPlan
    plan_digest: str
    sources: dict[str, str] = Field(
        description="Source of each field's value: explicit, auto, data, machine, parent, domain, ladder, preset, default."
    )
    preflight: dict[str, Any] = Field(description="Content of training-preflight.json.")


class PlacedJob(Job):
    """A job, with its place while it is queued."""

    queue: QueuePlace | None = Field(
        None, description="Its place in the queue; null: it is not queued, or not placed yet."
    )


class PlacedSummary(JobSummary):
    """A job's summary, with its place while it is queued."""

    queue: QueuePlace | None = Field(None, description="As in the job.")


class StateCount(BaseModel):
    """Number of jobs in a state."""

    state: JobState
    jobs: int


class JobAnswer(PlacedJob):
    """A job, with its place while it is queued, and its events when they were requested."""

    events: list[Event] | None = None


class ChangeJob(BaseModel):
    """Fields of an unfinished job that can be changed."""

    model_config = ConfigDict(extra="forbid")
    priority: StrictInt = Field(
        ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY, description="Higher runs first; above 0 only for operators."
    )


@router.post("/jobs", status_code=status.HTTP_201_CREATED, dependencies=[*TRAINER, PLAN_LIMIT])
def create_job(
    body: CreateJob,
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """Create a job from its contract, or from rows and flat keys. A repeated request with the same Idempotency-Key returns
    the same job.
    """
    check_priority(caller, body.priority)
    terms = QueueTerms.model_validate(body.model_dump(include=set(QueueTerms.model_fields)))
    key, labels = idempotency_key, body.metadata
    if isinstance(body, CreateMerge):
        return submit_merge(services, view, body.contract, labels=labels, idempotency_key=key, terms=terms)
    if isinstance(body, CreateImport):
        return submit_import(services, view, body.contract, labels=labels, idempotency_key=key, terms=terms)
    if isinstance(body, CreateEvaluation):
        judged, name = view.evals.get(body.eval), body.name
        return submit_run(services, view, judged, body.run, name=name, labels=labels, idempotency_key=key, terms=terms)
    if isinstance(body, CreateFromRows):
        flat = body.flat()
        return submit_rows(
            services, view, body.data, flat, body.request, labels=labels, idempotency_key=key, terms=terms
        )
    return submit_finetune(services, view, body.request(), labels=labels, idempotency_key=key, terms=terms)


@router.post("/plans", dependencies=[*TRAINER, PLAN_LIMIT])
def plan(body: PlanRequest, services: ServicesDep, view: TenantViewDep, caller: CallerDep) -> PlanAnswer:
    """Dry run: all checks of a submission, and the execution plan that it would store. Nothing is written."""
    check_priority(caller, body.priority)
    checked = check_contract(services, view, body.request())
    return PlanAnswer(
        plan=checked.plan, plan_digest=checked.plan.digest, sources=checked.sources, preflight=checked.record()
    )


@router.get("/contract/schema")
def contract_schema() -> dict[str, Any]:
    """JSON Schema of the fine-tune contract."""
    return FineTuneContract.model_json_schema()


@router.get("/capabilities")
def capabilities(services: ServicesDep) -> CapabilityMatrix:
    """List what this release trains, merges and serves: one row per capability, with the error code that proves it."""
    return capabilities_here(services.sandboxes.report().statement)


@router.get("/workers")
def list_workers(services: ServicesDep, caller: CallerDep) -> WholeList[WorkerMachine]:
    """The machines of the live workers, as they report them: those that a job can be planned for.

    `fault`, `release` and the sizes of disks are for operators; for other callers they are null.
    """
    machines = services.workers.machines()
    return WholeList(data=machines if caller.is_operator else [machine.for_tenants() for machine in machines])


@router.get("/estimates/accuracy")
def estimate_accuracy(view: TenantViewDep) -> WholeList[MemoryAccuracy]:
    """Accuracy of the memory estimates by device: predicted and measured peak memory of finished jobs."""
    return WholeList(data=view.jobs.memory_accuracy())


@router.get("/jobs/{job_id}/preflight")
def job_preflight(job_id: Id, view: TenantViewDep) -> dict[str, Any]:
    """Return the results of the preflight before the training: model, data, supervision, estimate, source of each
    field's value.
    """
    return view.jobs.preflight(job_id)


@router.get(
    "/jobs/{job_id}/log",
    response_class=PlainTextResponse,
    responses=declared_of_other_type(ErrorAnswer),
    dependencies=TRAINER,
)
def job_log(
    job_id: Id,
    view: TenantViewDep,
    attempt: Annotated[
        int | None, Query(ge=1, description="Number of the attempt; by default the last attempt that has a log.")
    ] = None,
    size: Annotated[
        int, Query(alias="bytes", ge=1, le=LOG_BYTES, description="At most this many bytes at the end of the log.")
    ] = LOG_BYTES,
) -> Response:
    """The end of an attempt's log; it may quote rows. `X-Mens-Attempt` is the attempt's number; without a log the text is empty.

    The log of a running attempt is at most 15 seconds old.
    """
    log = view.jobs.log(job_id, attempt)
    if log is None:
        return PlainTextResponse("")
    content = log.text.encode()
    # The cut may be inside a character, so the incomplete first line is left out.
    whole = content if len(content) <= size else content[-size:].partition(b"\n")[2]
    return PlainTextResponse(whole, headers={"X-Mens-Attempt": str(log.attempt)})


def which_jobs(
    kind: Annotated[Kind | None, Query()] = None,
    base_model: Annotated[Text, Query(description="Only jobs of this base.")] = None,
    alias: Annotated[Text, Query(description="Only jobs that move this alias.")] = None,
    created_by: Annotated[Text, Query(description="Only jobs that the key of this name submitted.")] = None,
    created_after: Annotated[AwareDatetime | None, Query(description="Earliest time of creation.")] = None,
    created_before: Annotated[AwareDatetime | None, Query(description="Only jobs created before this time.")] = None,
    q: Annotated[
        str | None,
        Query(
            min_length=2,
            max_length=100,
            pattern=NO_NUL,
            description="Part of a job's name or base, or the beginning or end of its id.",
        ),
    ] = None,
) -> JobFilter:
    """Return the filter of a request, without states."""
    return JobFilter(
        kind=kind,
        base_model=base_model,
        alias=alias,
        created_by=created_by,
        created_after=created_after,
        created_before=created_before,
        text=q,
    )


WhichJobs = Annotated[JobFilter, Depends(which_jobs)]


@router.get("/jobs:count")
def count_jobs(
    view: TenantViewDep,
    which: WhichJobs,
    _group_by: Annotated[Literal["state"], Query(alias="group_by", description="Field to count jobs by.")] = "state",
) -> WholeList[StateCount]:
    """Numbers of jobs by state, with the filters of the list; states without any are left out."""
    counts = view.jobs.count_states(which)
    return WholeList(data=[StateCount(state=state, jobs=counts[state]) for state in JobState if state in counts])


@router.get("/jobs", response_model=Page[PlacedJob] | Page[PlacedSummary], responses=POLLED)
def list_jobs(
    services: ServicesDep,
    view: TenantViewDep,
    which: WhichJobs,
    after: After = None,
    limit: Limit = 20,
    state: Annotated[
        list[JobState] | None, Query(description="Only jobs in this state; repeat it for several states.")
    ] = None,
    shape: Annotated[
        Literal["full", "summary"],
        Query(alias="view", description="`summary`: about 500 bytes per job, without contract, plan and result."),
    ] = "full",
) -> Response:
    """Jobs of every kind, newest first. Sample answers are left out; `GET /v1/jobs/{job_id}` has them.

    Poll it with If-None-Match: while no job of the page has changed, the answer is a 304 without a body.
    """
    which = replace(which, states=state or ())
    cursor = services.job_changes.cursor()  # before the jobs are read, so that the stream misses no later change
    if shape == "summary":
        summaries = view.jobs.summaries(which, after=after, limit=limit)
        places = services.queue_places.of_all(summaries)
        rows = [PlacedSummary.model_construct(**dict(job), queue=places[job.id]) for job in summaries[:limit]]
        page = Page[PlacedSummary].model_construct(data=rows, has_more=len(summaries) > limit)
        return _rendered(page, page_etag(summaries, places), cursor)
    jobs = view.jobs.list(which, after=after, limit=limit)
    places = services.queue_places.of_all(jobs)
    shown = [dict(job) | {"result": without_samples(job.result)} for job in jobs]
    placed = [PlacedJob(**job, queue=places[job["id"]]) for job in shown[:limit]]
    return _rendered(Page[PlacedJob](data=placed, has_more=len(shown) > limit), page_etag(jobs, places), cursor)


def _rendered(page: BaseModel, etag: str, cursor: str) -> Response:
    """Return a page as JSON. FastAPI would validate it again, as a page of either kind."""
    headers = {"ETag": etag, CURSOR_HEADER: cursor}
    return Response(page.model_dump_json(by_alias=True), media_type="application/json", headers=headers)


@router.get("/jobs/{job_id}", response_model=JobAnswer, responses=POLLED)
def retrieve_job(
    job_id: Id,
    services: ServicesDep,
    view: TenantViewDep,
    response: Response,
    if_none_match: Annotated[str | None, Header()] = None,
    after: Annotated[
        str | None, Query(description="Also return the events after this one (an id or seq; 0 for all).")
    ] = None,
    last: Annotated[
        int | None, Query(ge=1, le=EVENTS_PER_POLL, description="Also return this many of the newest events.")
    ] = None,
) -> Any:
    """One job. Poll it with If-None-Match: an unchanged job is a 304 without a body."""
    response.headers[CURSOR_HEADER] = services.job_changes.cursor()  # before the job is read
    job = view.job(job_id)
    place = services.queue_places.of(job)
    etag = job_etag(job.version, place)
    if if_none_match == etag:
        return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers={"ETag": etag})
    response.headers["ETag"] = etag
    cursor, events = event_seq(after), None
    if last is not None:
        newest = view.jobs.recent_events(job_id, limit=last)[:last]
        events = [event for event in reversed(newest) if event.seq > (cursor or 0)]
    elif cursor is not None:
        events = list(view.jobs.events(job_id, after=cursor, limit=EVENTS_PER_POLL))
    return JobAnswer(**job.model_dump(), queue=place, events=events)


@router.patch("/jobs/{job_id}", dependencies=TRAINER)
def change_job(job_id: Id, body: ChangeJob, view: TenantViewDep, caller: CallerDep) -> Job:
    """Change the priority of an unfinished job: trainers lower it, or raise it to 0 again; operators raise it above."""
    check_priority(caller, body.priority)
    return view.jobs.set_priority(job_id, body.priority)


@router.post("/jobs/{job_id}/cancel", dependencies=TRAINER)
def cancel_job(job_id: Id, view: TenantViewDep) -> Job:
    """Cancel a job. A running job stops after its current step."""
    return view.change_job(view.jobs.cancel, job_id)


@router.post("/jobs/{job_id}/pause", dependencies=TRAINER)
def pause_job(job_id: Id, view: TenantViewDep) -> Job:
    """Pause a job. A running job writes a checkpoint first."""
    return view.change_job(view.jobs.pause, job_id)


@router.post("/jobs/{job_id}/resume", dependencies=TRAINER)
def resume_job(job_id: Id, services: ServicesDep, view: TenantViewDep) -> Job:
    """Resume a paused job from its checkpoint."""
    job = view.change_job(view.jobs.resume, job_id)
    services.job_queue.enqueue(job.id)
    return job


@router.get("/jobs/{job_id}/checkpoints")
def list_checkpoints(job_id: Id, view: TenantViewDep) -> WholeList[Adapter]:
    """The job's stored checkpoints and its result, newest first, also while it runs and after it was cancelled or failed."""
    checkpoints = view.checkpoints(view.jobs.get(job_id))
    return WholeList(
        data=[
            checkpoint.model_copy(update={"metrics": without_samples(checkpoint.metrics)}) for checkpoint in checkpoints
        ]
    )

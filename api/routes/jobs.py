"""The native view of jobs: /v1/jobs, /v1/plans, /v1/contract/schema."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Depends, Header, Query, Request, Response, status
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field

from api.authentication import requires
from api.ids import Id
from api.openai_types import Metadata
from api.openai_view import event_seq
from api.pages import After, Limit, Page, WholeList, page_of
from api.scope import Scope, ScopeDep
from api.services import ServicesDep
from api.submission import check_contract, submit_finetune, submit_merge
from shared.capabilities import CAPABILITIES, CapabilityMatrix
from shared.contract import FineTuneContract, MergeContract, Name
from shared.job import Event, Job, Kind, MemoryAccuracy
from shared.jobstate import FINAL
from shared.planner import ExecutionPlan
from shared.preflight import Asked
from shared.registry import Adapter
from shared.tenancy import Role

router = APIRouter(prefix="/v1", tags=["jobs"])

TRAINER = [requires(Role.TRAINER)]
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)]
EVENTS_PER_POLL = 500


class CreateFinetune(BaseModel):
    """A fine-tune job by its full contract."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["finetune"] = "finetune"
    contract: FineTuneContract
    preset: str | None = Field(None, description="Values for the fields that the contract leaves open, or `auto`.")
    domain: str | None = Field(None, description="A domain profile; it wins over the preset.")
    name: Name | None = Field(None, description="Left part of the adapter's id; exec.adapter_tag when null.")
    metadata: Metadata = {}

    def asked(self) -> Asked:
        """The contract as far as it was written, with its presets."""
        return _asked(self.contract, self.preset, self.domain, self.name)


class CreateMerge(BaseModel):
    """A merge job."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["merge"]
    contract: MergeContract
    metadata: Metadata = {}


class PlanRequest(BaseModel):
    """A dry run of a fine-tune contract."""

    model_config = ConfigDict(extra="forbid")
    contract: FineTuneContract
    preset: str | None = None
    domain: str | None = None
    name: Name | None = None


class PlanAnswer(BaseModel):
    """The plan that the contract would get, and all that was found on the way."""

    plan: ExecutionPlan
    plan_digest: str
    sources: dict[str, str] = Field(description="Who decided each field: explicit, domain, ladder, preset, default.")
    preflight: dict[str, Any] = Field(description="Content of training-preflight.json.")


class JobAnswer(Job):
    """A job, with its events when they were asked for."""

    events: list[Event] | None = None


@router.post("/jobs", status_code=status.HTTP_201_CREATED, dependencies=TRAINER)
def create_job(
    body: Annotated[CreateFinetune | CreateMerge, Field(discriminator="kind")],
    services: ServicesDep,
    scope: ScopeDep,
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """Create a job from its contract. With an Idempotency-Key a repeated request gives the same job."""
    if isinstance(body, CreateMerge):
        return submit_merge(services, scope, body.contract, labels=body.metadata, idempotency_key=idempotency_key)
    return submit_finetune(services, scope, body.asked(), labels=body.metadata, idempotency_key=idempotency_key)


@router.post("/plans", dependencies=TRAINER)
def plan(body: PlanRequest, services: ServicesDep, scope: ScopeDep) -> PlanAnswer:
    """Dry run: everything a submission checks, and the plan it would store; nothing is written."""
    checked = check_contract(services, scope, _asked(body.contract, body.preset, body.domain, body.name))
    return PlanAnswer(
        plan=checked.plan, plan_digest=checked.plan.digest, sources=checked.sources, preflight=checked.record()
    )


@router.get("/contract/schema")
def contract_schema() -> dict[str, Any]:
    """JSON Schema of the fine-tune contract."""
    return FineTuneContract.model_json_schema()


@router.get("/capabilities")
def capabilities() -> CapabilityMatrix:
    """What this release trains, merges and serves, row by row, with the code that proves each."""
    return CAPABILITIES


@router.get("/estimates/accuracy")
def estimate_accuracy(scope: ScopeDep) -> WholeList[MemoryAccuracy]:
    """How far off the memory estimates were so far, by device: predicted against measured peak of finished jobs."""
    return WholeList(data=scope.ledger.memory_accuracy())


@router.get("/jobs/{job_id}/preflight")
def job_preflight(job_id: Id, scope: ScopeDep) -> dict[str, Any]:
    """Everything that was found before the job trained: model, data, supervision, estimate, who decided each field."""
    return scope.ledger.preflight(job_id)


@router.get("/jobs")
def list_jobs(
    scope: ScopeDep, after: After = None, limit: Limit = 20, kind: Annotated[Kind | None, Query()] = None
) -> Page[Job]:
    """Jobs of every kind, newest first."""
    return page_of(scope.ledger.list_jobs(after=after, limit=limit, kind=kind), limit)


@router.get("/jobs/{job_id}", response_model=JobAnswer, responses={304: {"description": "Not changed."}})
def retrieve_job(
    job_id: Id,
    scope: ScopeDep,
    response: Response,
    if_none_match: Annotated[str | None, Header()] = None,
    after: Annotated[
        str | None, Query(description="Also return events after this one (an id or seq; 0 for all).")
    ] = None,
    last: Annotated[
        int | None, Query(ge=1, le=EVENTS_PER_POLL, description="Also return events, the newest so many.")
    ] = None,
) -> Any:
    """One job. Poll it with If-None-Match: an unchanged job is a 304 without a body."""
    job = scope.job(job_id)
    etag = f'W/"{job.version}"'
    if if_none_match == etag:
        return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers={"ETag": etag})
    response.headers["ETag"] = etag
    return JobAnswer(**job.model_dump(), events=_asked_events(scope, job_id, event_seq(after), last))


@router.post("/jobs/{job_id}/cancel", dependencies=TRAINER)
def cancel_job(job_id: Id, scope: ScopeDep) -> Job:
    """Cancel a job; one that is running stops after the step at hand."""
    return scope.ledger.cancel(job_id)


@router.post("/jobs/{job_id}/pause", dependencies=TRAINER)
def pause_job(job_id: Id, scope: ScopeDep) -> Job:
    """Pause a job; one that is running first writes a checkpoint."""
    return scope.ledger.pause(job_id)


@router.post("/jobs/{job_id}/resume", dependencies=TRAINER)
def resume_job(job_id: Id, services: ServicesDep, scope: ScopeDep) -> Job:
    """Resume a paused job from its checkpoint."""
    job = scope.ledger.resume(job_id)
    services.doorbell.ring(job.id)
    return job


@router.get("/jobs/{job_id}/checkpoints")
def list_checkpoints(job_id: Id, scope: ScopeDep) -> WholeList[Adapter]:
    """The job's stored checkpoints and its result, newest first."""
    return WholeList(data=scope.registry.adapters(ids=scope.ledger.get(job_id).result.get("adapters", [])))


def existing_job(job_id: Id, scope: ScopeDep) -> Job:
    """The job, looked up before the stream begins, so that an unknown one is a 404."""
    return scope.ledger.get(job_id)


@router.get("/jobs/{job_id}/events", response_class=EventSourceResponse)
async def stream_events(
    job: Annotated[Job, Depends(existing_job)],
    services: ServicesDep,
    scope: ScopeDep,
    request: Request,
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[str | None, Query(description="Start after this event.")] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Events as server-sent events, from the beginning or after Last-Event-ID, until the job is over.

    The last one, ``event: job``, carries the finished job. A stream that ends without it: ask again after the last event.
    """
    cursor = event_seq(last_event_id or after) or 0
    while not (services.stopping.has_begun or await request.is_disconnected()):
        current, events = await run_in_threadpool(_look, scope, job.id, cursor)
        for event in events:
            cursor = event.seq
            yield ServerSentEvent(data=event, event=event.type, id=str(event.seq))
        if current.state in FINAL and len(events) < EVENTS_PER_POLL:
            yield ServerSentEvent(data=current, event="job")
            return
        await anyio.sleep(services.settings.event_poll_seconds)


def _asked(contract: FineTuneContract, preset: str | None, domain: str | None, name: str | None) -> Asked:
    return Asked(contract.model_dump(mode="json", exclude_unset=True), preset, domain, name)


def _asked_events(scope: Scope, job_id: str, after: int | None, last: int | None) -> list[Event] | None:
    """Oldest first; None when none were asked for."""
    if last is not None:
        newest = scope.ledger.recent_events(job_id, limit=last)[:last]
        return [event for event in reversed(newest) if event.seq > (after or 0)]
    return None if after is None else scope.ledger.events(job_id, after=after, limit=EVENTS_PER_POLL)


def _look(scope: Scope, job_id: str, cursor: int) -> tuple[Job, list[Event]]:
    """The job first, then its events: a job seen as final has all its events already."""
    job = scope.job(job_id)
    return job, scope.ledger.events(job_id, after=cursor, limit=EVENTS_PER_POLL)

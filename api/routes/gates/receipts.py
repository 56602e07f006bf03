"""/v1/receipts: outcomes of judging adapters by policies, and the job that judges one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, status
from pydantic import BaseModel, ConfigDict, Field

from api.services import ServicesDep
from api.submission import submit_judgement
from api.web.auth import TRAINER
from api.web.params import NO_NUL, After, Id, IdempotencyKey, Limit, Page, page_of
from api.web.tenant_rates import PLAN_LIMIT
from api.web.tenant_view import TenantViewDep
from shared.database.gates.receipts import StoredReceipt
from shared.database.records import Job
from shared.database.routing import AdapterId
from shared.gates.receipt import Receipt

router = APIRouter(prefix="/v1/receipts", tags=["policies"])


class CreateReceipt(BaseModel):
    """Request to judge an adapter for an alias, against the adapter that answers for it now."""

    model_config = ConfigDict(extra="forbid")
    adapter: AdapterId = Field(description="Id of a published adapter.")
    alias: str = Field(
        min_length=1, max_length=256, pattern=NO_NUL, description="Alias that the adapter would answer for."
    )
    policy: str | None = Field(
        None, min_length=1, max_length=64, description="A policy to try instead of the one that governs the alias."
    )
    cycles: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        pattern=NO_NUL,
        description="Id of a file with one cycle of scorecards per line, for the gate `cycles`.",
    )


@router.post("", status_code=status.HTTP_202_ACCEPTED, dependencies=[*TRAINER, PLAN_LIMIT])
def create_receipt(
    body: CreateReceipt, services: ServicesDep, view: TenantViewDep, idempotency_key: IdempotencyKey = None
) -> Job:
    """Judge an adapter by a policy: a job, whose result names the receipt. Its requests to models count toward the tenant's
    usage.
    """
    return submit_judgement(
        services, view, body.adapter, body.alias, body.policy, cycles=body.cycles, idempotency_key=idempotency_key
    )


@router.get("")
def list_receipts(
    view: TenantViewDep,
    adapter: Annotated[
        str | None, Query(max_length=256, pattern=NO_NUL, description="Only receipts of this adapter.")
    ] = None,
    job: Annotated[str | None, Query(max_length=64, pattern=NO_NUL, description="Only receipts of this job.")] = None,
    after: After = None,
    limit: Limit = 20,
) -> Page[StoredReceipt]:
    """Receipts of the tenant, and the shared ones, newest first."""
    return page_of(view.receipts.list(adapter=adapter, job=job, after=after, limit=limit), limit)


@router.get("/schema")
def receipt_schema() -> dict[str, Any]:
    """JSON Schema of a receipt, which is the field `receipt` in the responses of the other routes."""
    return Receipt.model_json_schema(by_alias=True)


@router.get("/{receipt_id}")
def retrieve_receipt(receipt_id: Id, view: TenantViewDep) -> StoredReceipt:
    """One receipt, with a row for each gate of its policy."""
    return view.receipts.get(receipt_id)

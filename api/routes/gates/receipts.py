"""/v1/receipts: what came of judging adapters by policies."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from api.web.params import NO_NUL, After, Id, Limit, Page, page_of
from api.web.tenant_view import TenantViewDep
from shared.database.gates.receipts import StoredReceipt
from shared.gates.receipt import Receipt

router = APIRouter(prefix="/v1/receipts", tags=["policies"])


@router.get("")
def list_receipts(
    view: TenantViewDep,
    adapter: Annotated[str | None, Query(max_length=256, pattern=NO_NUL, description="Of this adapter alone.")] = None,
    job: Annotated[str | None, Query(max_length=64, pattern=NO_NUL, description="Of this job alone.")] = None,
    after: After = None,
    limit: Limit = 20,
) -> Page[StoredReceipt]:
    """Receipts of the tenant, and the shared ones, newest first."""
    return page_of(view.receipts.list(adapter=adapter, job=job, after=after, limit=limit), limit)


@router.get("/schema")
def receipt_schema() -> dict[str, Any]:
    """JSON Schema of a receipt: of the field `receipt` of what the other routes return."""
    return Receipt.model_json_schema(by_alias=True)


@router.get("/{receipt_id}")
def retrieve_receipt(receipt_id: Id, view: TenantViewDep) -> StoredReceipt:
    """One receipt, with a row for each gate of its policy."""
    return view.receipts.get(receipt_id)

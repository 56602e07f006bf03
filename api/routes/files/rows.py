"""A file's rows as a base would be trained on them, and the report on it: /v1/files/{id}/rows and /report."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool

from api.data_view.readers import DataSource
from api.data_view.reports import ReportKey
from api.data_view.types import DataFileReport, DataRows, Only, ReportMade, ReportPending
from api.errors import ErrorAnswer, declared
from api.services import Services, ServicesDep
from api.web.auth import CallerDep
from api.web.params import Id
from api.web.tenant_rates import FILE_VIEW_LIMIT
from api.web.tenant_view import TenantViewDep
from shared.artifacts.base_folders import locate_fetched_base
from shared.contract.choices import MethodType

router = APIRouter(prefix="/v1/files", tags=["files"], dependencies=[FILE_VIEW_LIMIT])
RETRY_SECONDS = 2
BaseName = Annotated[
    str | None,
    Query(
        max_length=256,
        pattern=r"^[^\x00]+$",
        description="A base of the catalogue, whose template and tokens are shown.",
    ),
]
SeqLen = Annotated[
    int | None,
    Query(
        ge=8,
        le=1 << 20,
        description="Length in tokens at which rows are truncated; by default as in `mens data check`.",
    ),
]
RowsOf = Annotated[
    MethodType | None, Query(description="Training method that the rows are for; by default the first row's.")
]
REPORT_ANSWERS: dict[int | str, dict[str, Any]] = {
    **declared(ErrorAnswer),
    202: {"model": ReportPending, "description": "It is being created; `Retry-After` says when to request it again."},
}


@router.get("/{file_id}/rows", responses=declared(ErrorAnswer))
async def file_rows(
    file_id: Id,
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    base_model: BaseName = None,
    seq_len: SeqLen = None,
    method: RowsOf = None,
    after: Annotated[int, Query(ge=0, le=2**53, description="The page begins after this line.")] = 0,
    limit: Annotated[int, Query(ge=1, le=50, description="Rows per page.")] = 20,
    only: Annotated[
        Only,
        Query(
            description="`errors`: lines that are not rows, and rows that cannot be trained on; `cut`: rows that are too long; `notes`: rows "
            "with a note."
        ),
    ] = "all",
) -> DataRows:
    """Lines of a data file, with their faults. With `base_model`, each row as the base's chat template writes it, in
    tokens, with the supervised ones marked.
    """
    rows_request = {"after": after, "limit": limit, "only": only, "seq_len": seq_len, "method": method}

    def read() -> DataRows:
        file, base = view.files.get(file_id), _base(services, base_model)
        with services.storage.local_file(file.sha256) as path:
            rows = services.file_readers.rows(DataSource(path, base[0] if base else None), rows_request)
        return DataRows(file_id=file.id, base_model=base_model, **rows)

    # Looked up before the request waits for its turn, so that a missing file is reported at once.
    await run_in_threadpool(view.files.get, file_id)
    return await services.row_turns.run(caller.tenant, read)


@router.get("/{file_id}/report", response_model=DataFileReport, responses=REPORT_ANSWERS)
def file_report(
    file_id: Id,
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    base_model: BaseName = None,
    seq_len: SeqLen = None,
    method: RowsOf = None,
) -> Any:
    """Report on a whole data file: bad lines, lengths, duplicates; with `base_model`, the tokens that it would be trained on, as a
    job's preflight finds them. Making it can take minutes: until then the answer is 202.
    """
    file, base = view.files.get(file_id), _base(services, base_model)

    def make() -> ReportMade:
        with services.storage.local_file(file.sha256) as path:
            made = services.file_readers.report(
                DataSource(path, base[0] if base else None), {"seq_len": seq_len, "method": method}
            )
        return ReportMade.model_validate(made)

    key = ReportKey(file.sha256, base[1] if base else "", seq_len, method)
    report = services.file_reports.find(caller.tenant, key, make)
    if report is None:
        pending = ReportPending(file_id=file.id).model_dump_json()
        headers = {"Retry-After": str(RETRY_SECONDS)}
        return Response(pending, HTTPStatus.ACCEPTED, headers, media_type="application/json")
    return DataFileReport(file_id=file.id, base_model=base_model, **dict(report))


def _base(services: Services, name: str | None) -> tuple[Path, str] | None:
    """Return folder and digest of a base that this machine has."""
    if name is None:
        return None
    entry = services.catalog().get(name)
    return locate_fetched_base(entry, services.settings), entry.digest

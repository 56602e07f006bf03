"""Series of a job over HTTP: /v1/jobs/{id}/metrics, as curves that show every extreme, or as CSV with every step."""

from __future__ import annotations

import gzip
import math
from array import array
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from itertools import zip_longest
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from api.errors import ErrorAnswer, declared
from api.services import ServicesDep
from api.web.auth import CallerDep
from api.web.etags import is_known
from api.web.params import Id
from api.web.response_headers import accepts_gzip
from api.web.tenant_view import TenantViewDep
from shared.database.lists.job_series import SeriesExtent, read_extent, read_series
from shared.hashing import digest_json
from shared.job_series import bucket_size, thinned

router = APIRouter(prefix="/v1", tags=["jobs"])
CSV = "text/csv"
GZIP_LEVEL = 4
NAMES = r"^[a-z_]{1,32}(,[a-z_]{1,32}){0,31}$"
ANSWERS: dict[int | str, dict[str, Any]] = {
    **declared(ErrorAnswer),
    200: {
        "content": {CSV: {"schema": {"type": "string"}}},
        "description": "The curves; with `Accept: text/csv`, every step.",
    },
    304: {"description": "Not changed."},
}


class SeriesAttempt(BaseModel):
    """Part of a run: from this step on, an attempt's values replace those of earlier attempts."""

    attempt: int
    first_step: int


class SeriesPoints(BaseModel):
    """Points of a series, in the order of steps."""

    step: list[int]
    value: list[float | None] = Field(description="Null: the value was not finite.")


class JobMetrics(BaseModel):
    """Curves of a job."""

    object: Literal["job.metrics"] = "job.metrics"
    job_id: str
    last_step: int = Field(description="Last step that any series has; 0: none.")
    attempts: list[SeriesAttempt]
    bucket: int = Field(
        description=(
            "Steps of a bucket, counted from step 1: a power of two. Each bucket gives its smallest and largest "
            "measured values, and the first value that was not finite. 1: every step is included."
        )
    )
    available: list[str] = Field(description="Names of all series of the job.")
    series: dict[str, SeriesPoints]


@router.get("/jobs/{job_id}/metrics", response_model=JobMetrics, responses=ANSWERS)
async def job_metrics(
    request: Request,
    job_id: Id,
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    series: Annotated[
        str | None, Query(pattern=NAMES, description="Names of series, comma-separated; by default all.")
    ] = None,
    from_step: Annotated[int, Query(ge=1, le=2**31 - 1, description="First step of the range.")] = 1,
    to_step: Annotated[
        int | None, Query(ge=1, le=2**31 - 1, description="Last step of the range; by default the last of all.")
    ] = None,
    points: Annotated[
        int, Query(ge=2, le=5000, description="Approximate number of points per series: two per bucket.")
    ] = 1000,
    accept: Annotated[str, Header()] = "",
    if_none_match: Annotated[str, Header()] = "",
) -> Any:
    """Losses, learning rate, gradient norm, speed and memory of a run, also while it runs.

    The range is cut before it is thinned, so a smaller range shows more. With `Accept: text/csv` every step of the range is returned.
    Runs by workers of an earlier release have no series; their events contain some of the losses.
    """
    job, is_csv = await run_in_threadpool(view.job, job_id), CSV in accept
    identity = [job.id, job.version, series, from_step, to_step, points, is_csv]
    headers = {"ETag": f'W/"{digest_json(identity)[:32]}"', "Vary": "Accept, Accept-Encoding"}
    if is_known(headers["ETag"], if_none_match):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)

    def answer(text: str, media_type: str) -> Response:
        body = text.encode()
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            # Compression shrinks numbers in text to less than half, which also bounds the memory that is held for a
            # slow client.
            body = gzip.compress(body, GZIP_LEVEL, mtime=0)
            return Response(body, media_type=media_type, headers=headers | {"Content-Encoding": "gzip"})
        return Response(body, media_type=media_type, headers=headers)

    def read() -> Response:
        extent = read_extent(services.database, job.id)
        names = list(dict.fromkeys(series.split(","))) if series else extent.names
        last = min(to_step or extent.last_step, extent.last_step)
        values = read_series(services.database, job.id, extent, names, from_step, last)
        if is_csv:
            return answer("".join(_csv_lines(values, from_step)), CSV)
        # Rendered here, in the thread: thousands of points would occupy the event loop.
        return answer(_curves(job.id, extent, values, from_step, points).model_dump_json(), "application/json")

    # Every step of a long run as text occupies the interpreter, and delays other requests.
    return await (services.curve_turns.run(caller.tenant, read) if is_csv else run_in_threadpool(read))


def _curves(job_id: str, extent: SeriesExtent, values: dict[str, array[float]], first: int, points: int) -> JobMetrics:
    steps = max(map(len, values.values()), default=0)
    bucket = bucket_size(first, first + steps - 1, points) if steps else 1
    curves = {name: thinned(array_of_values, first, bucket) for name, array_of_values in values.items()}
    return JobMetrics.model_construct(
        job_id=job_id,
        last_step=extent.last_step,
        attempts=[
            SeriesAttempt(attempt=attempt, first_step=first_step) for attempt, first_step in extent.attempts.items()
        ],
        bucket=bucket,
        available=extent.names,
        series={
            name: SeriesPoints.model_construct(step=curve.step, value=curve.value) for name, curve in curves.items()
        },
    )


def _csv_lines(values: dict[str, array[float]], first: int) -> Iterator[str]:
    yield ",".join(["step", *values]) + "\n"
    for position, row in enumerate(zip_longest(*values.values(), fillvalue=math.nan)):
        if not all(map(math.isnan, row)):
            yield f"{first + position},{','.join(_cells(row))}\n"


def _cells(row: Sequence[float]) -> Iterator[str]:
    for value in row:
        yield "" if math.isnan(value) else "nan" if math.isinf(value) else f"{value:.7g}"

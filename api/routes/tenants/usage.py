"""/v1/usage: requests and tokens by model, key and day; /v1/usage/costs: GPU time next to them, and what it costs."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, date, datetime
from functools import partial
from io import TextIOWrapper
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BeforeValidator

from api.errors import ErrorAnswer, declared
from api.services import Services, ServicesDep
from api.web.auth import Caller, CallerDep, require_operator
from api.web.params import NO_NUL, Page, page_of
from shared.database.overview.costs import COST_COLUMNS, COST_GROUPS, CostGroup, CostLine, Costs, Payer
from shared.database.tenancy import Role
from shared.database.usage import GROUPS, Period, UsageLine
from shared.errors import Code, Forbidden, InvalidRequest
from shared.host import disk_errors

router = APIRouter(prefix="/v1/usage", tags=["usage"])

DEFAULT_DAYS = 30
Field = TypeVar("Field", bound=str)
CSV = "text/csv"
MOST_CSV_LINES = 100_000
PART_BYTES = 1 << 16
COST_ANSWERS: dict[int | str, dict[str, Any]] = {
    **declared(ErrorAnswer),
    200: {
        "content": {CSV: {"schema": {"type": "string"}}},
        "description": "The lines; with `Accept: text/csv`, all of them.",
    },
}


def _check_day(text: object) -> object:
    if isinstance(text, str) and not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        raise ValueError("a day is written as in 2026-11-30")
    return text


Day = Annotated[date, BeforeValidator(_check_day)]
"""Without the check, pydantic interprets a number as a time in seconds."""
From = Annotated[Day | None, Query(alias="from", description="First day, UTC; by default 29 days before the last.")]
To = Annotated[Day | None, Query(description="Last day, UTC; today by default.")]
GroupBy = Annotated[str, Query(description="Fields to group by: some of `day`, `key` and `model`, comma-separated.")]
KeyId = Annotated[
    str | None, Query(pattern=NO_NUL, description="Only this key's usage, by its id; the key may be revoked.")
]
Model = Annotated[
    str | None, Query(pattern=NO_NUL, description="Only usage of this model: an adapter's id or a base's name.")
]
After = Annotated[str | None, Query(pattern=NO_NUL, description="Id of the last line of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Lines per page.")]


@router.get("")
def usage(
    services: ServicesDep,
    caller: CallerDep,
    from_: From = None,
    to: To = None,
    group_by: GroupBy = "day,key,model",
    key_id: KeyId = None,
    model: Model = None,
    after: After = None,
    limit: Limit = 100,
) -> Page[UsageLine]:
    """Requests and tokens, ordered by day, key and model. An admin gets the tenant's usage, any other key its own.

    Counts lag by up to two seconds.
    """
    lines = services.usage.lines(
        caller.tenant,
        _period(from_, to),
        _groups(group_by, GROUPS),
        key_id=_visible_key(services, caller, key_id),
        model=model,
        after=after,
        limit=limit,
    )
    return page_of(lines, limit)


@router.get("/costs", response_model=Page[CostLine], responses=COST_ANSWERS)
async def costs(
    services: ServicesDep,
    caller: CallerDep,
    from_: From = None,
    to: To = None,
    group_by: Annotated[
        str,
        Query(
            description="Fields to group by: some of `day`, `key`, `base`, `model` and `job`, comma-separated; with `tenant`, for "
            "operators, the costs of every tenant."
        ),
    ] = "day,key,base",
    after: After = None,
    limit: Limit = 100,
    accept: Annotated[str, Header()] = "",
) -> Any:
    """GPU time of jobs next to tokens, ordered by day, tenant, key, base, model and job, with their prices if an operator has set them.

    An admin gets the tenant's costs, any other key its own. With `Accept: text/csv` all lines are returned.
    """
    groups = _groups(group_by, COST_GROUPS)
    period, is_csv = _period(from_, to), CSV in accept
    if "tenant" in groups:
        await require_operator(caller)
    payer = Payer(None if "tenant" in groups else caller.tenant)
    if not caller.role.includes(Role.ADMIN):
        payer = Payer(caller.tenant, caller.key.id, caller.key.name)
    reader = Costs(services.database, services.settings.prices)

    def read_page() -> Page[CostLine]:
        return page_of(reader.lines(payer, period, groups, after=after, limit=limit), limit)

    def read_table() -> Response:
        # The file has no name, so it disappears when the response ends for any reason. /tmp may be in memory.
        with disk_errors(), ExitStack() as on_failure:
            table = on_failure.enter_context(TemporaryFile(dir=services.settings.home))
            with closing(reader.each_line(payer, period, groups, limit=MOST_CSV_LINES)) as lines:
                _write_csv(groups, lines, table)
            headers = {"Vary": "Accept", "Content-Length": str(table.tell())}
            on_failure.pop_all()
        return StreamingResponse(_parts(table), media_type=CSV, headers=headers)

    # Each page adds up the whole period, like the table. A slow client reads the table from the file, so it does not
    # hold the turn or a database connection meanwhile.
    return await services.curve_turns.run(caller.tenant, read_table if is_csv else read_page)


def _write_csv(groups: Iterable[CostGroup], lines: Iterable[CostLine], table: IO[bytes]) -> None:
    """Write the lines into a file, which stays open.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: the table has more than ``MOST_CSV_LINES`` lines.
    """
    left_out = {"id", *COST_COLUMNS.values()} - {COST_COLUMNS[group] for group in groups}
    columns = [name for name in CostLine.model_fields if name not in left_out]
    text = TextIOWrapper(table, "utf-8", newline="")
    try:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for number, line in enumerate(lines):
            if number == MOST_CSV_LINES:
                raise InvalidRequest(
                    Code.REQUEST_INVALID,
                    f"The period has more than {MOST_CSV_LINES} lines.",
                    remedy="Request fewer days, or group by fewer fields.",
                    param="from",
                )
            writer.writerow([_cell(getattr(line, name)) for name in columns])
    finally:
        text.detach()


def _parts(table: IO[bytes]) -> Iterator[bytes]:
    with table:
        table.seek(0)
        yield from iter(partial(table.read, PART_BYTES), b"")


def _cell(value: object) -> object:
    """Return a cell of a table; a name that a spreadsheet would read as a formula is marked as text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _period(first: date | None, last: date | None) -> Period:
    last = last or max(datetime.now(UTC).date(), first or date.min)
    first = first or date.fromordinal(max(last.toordinal() - DEFAULT_DAYS + 1, 1))
    if first > last:
        raise InvalidRequest(Code.REQUEST_INVALID, f"`from` ({first}) is later than `to` ({last}).", param="from")
    return Period(first, last)


def _groups(text: str, fields: Collection[Field]) -> list[Field]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := [name for name in names if name not in fields]:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"Usage cannot be grouped by {unknown[0]!r}.",
            remedy=f"Use some of {', '.join(fields)}.",
            param="group_by",
        )
    return [group for group in fields if group in names]


def _visible_key(services: Services, caller: Caller, key_id: str | None) -> str | None:
    """Return the key whose usage is returned, or None for all keys of the tenant."""
    if caller.role.includes(Role.ADMIN):
        return key_id if key_id is None else services.keys.get(key_id, caller.tenant).id
    if key_id not in (None, caller.key.id):
        raise Forbidden(
            Code.ROLE_INSUFFICIENT,
            f"Reading the usage of other keys needs a key with the role {str(Role.ADMIN)!r}; {caller.key.name!r} is a {caller.role}.",
            remedy="Leave `key_id` out to get the usage of your own key.",
            param="key_id",
        )
    return caller.key.id

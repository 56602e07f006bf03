"""Costs: GPU time of jobs and tokens of models, by day, tenant, key, base, model and job, and their price if prices are set."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal
from urllib.parse import quote, unquote

from pydantic import Field
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Select,
    cast,
    func,
    literal,
    select,
    tuple_,
    type_coerce,
    union_all,
)
from sqlalchemy.orm import InstrumentedAttribute

from shared.database.connection import Database
from shared.database.records import Value
from shared.database.tables.adapters import AdapterRow
from shared.database.tables.jobs import GpuTimeRow, JobRow
from shared.database.tables.keys import KeyRow, UsageRow
from shared.database.tenancy import SHARED
from shared.database.usage import FIGURES, REMOVED_KEY, Period
from shared.errors import Code, InvalidRequest

CostGroup = Literal["day", "tenant", "key", "base", "model", "job"]
COST_GROUPS: tuple[CostGroup, ...] = ("day", "tenant", "key", "base", "model", "job")
"""Fields that costs can be grouped by, in the order of the lines."""
COST_COLUMNS: dict[CostGroup, str] = {
    "day": "day",
    "tenant": "tenant",
    "key": "key_name",
    "base": "base",
    "model": "model",
    "job": "job_id",
}
"""Fields of a line, by the groups that fill them."""
MILLION = Decimal(1_000_000)
HOUR = Decimal(3600)
SMALLEST = Decimal("0.0001")
ROWS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Prices:
    """An operator's prices. Anything without a price is shown without an amount."""

    currency: str = ""
    gpu_hour: Decimal | None = None
    million_prompt_tokens: Decimal | None = None
    million_completion_tokens: Decimal | None = None

    def of_gpu(self, seconds: float) -> Decimal | None:
        """Return the price of GPU time."""
        return None if self.gpu_hour is None else (self.gpu_hour * Decimal(seconds) / HOUR).quantize(SMALLEST)

    def of_tokens(self, prompt: int, completion: int) -> Decimal | None:
        """Return the price of tokens; None unless both kinds have one."""
        if self.million_prompt_tokens is None or self.million_completion_tokens is None:
            return None
        price = self.million_prompt_tokens * prompt + self.million_completion_tokens * completion
        return (price / MILLION).quantize(SMALLEST)


class CostLine(Value):
    """GPU time and tokens of one group. Fields that the lines are not grouped by are null."""

    id: str
    day: str | None = Field(None, description="Day, UTC, on which an attempt began or an answer ended.")
    tenant: str | None = None
    key_name: str | None = Field(
        None, description="Name of the key that submitted the jobs or sent the requests; empty: unknown."
    )
    base: str | None = Field(None, description="Base model, also of an adapter.")
    model: str | None = Field(
        None,
        description="Adapter or base that answered; GPU time is that of the adapter that the job made, or else of its base.",
    )
    job_id: str | None = Field(
        None, description="Job that used the GPU time or made the adapter that answered; empty: a base answered."
    )
    attempts: int = Field(description="Attempts at jobs that have ended.")
    gpu_minutes: float = Field(description="GPU-minutes that they used.")
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    gpu_cost: str | None = Field(description="Price of the GPU time, in decimals; null: no price is set.")
    token_cost: str | None = Field(description="Price of the tokens, in decimals; null: no price is set.")
    currency: str | None = Field(description="Currency of both prices.")


@dataclass(frozen=True, slots=True)
class Payer:
    """The tenant or key whose costs are read.

    Attributes:
        tenant: tenant of the keys and jobs; None: of every tenant.
        key_id: only requests of this key, and jobs that a key named `key_name` of the tenant submitted; None: of all keys.
    """

    tenant: str | None
    key_id: str | None = None
    key_name: str | None = None


class Costs:
    """Reads costs; each operation is one query."""

    def __init__(self, database: Database, prices: Prices) -> None:
        self._db, self._prices = database, prices

    def lines(
        self, payer: Payer, period: Period, group_by: Sequence[CostGroup], *, after: str | None = None, limit: int = 100
    ) -> list[CostLine]:
        """Return costs by group, ordered by day, tenant, key, base, model and job; one line more than ``limit`` if more follow.

        Raises:
            InvalidRequest: ``REQUEST_INVALID``: ``after`` is not an id of such a line.
        """
        return list(self.each_line(payer, period, group_by, after=after, limit=limit))

    def each_line(
        self, payer: Payer, period: Period, group_by: Sequence[CostGroup], *, after: str | None = None, limit: int = 100
    ) -> Generator[CostLine, None, None]:
        """Yield the lines that :meth:`lines` returns, some hundred at a time; a database connection is in use until the
        last one.

        Raises:
            InvalidRequest: as :meth:`lines`.
        """
        groups = [group for group in COST_GROUPS if group in group_by]
        tokens, gpu_time = (
            _tokens(payer, period, groups),
            _gpu_time(payer, period, groups, is_sqlite=self._db.is_sqlite),
        )
        used = union_all(tokens, gpu_time).subquery()
        columns = [used.c[group] for group in groups]
        # PostgreSQL sums up BIGINT to NUMERIC, which would come back as a decimal.
        sums = [cast(func.sum(used.c[name]), BigInteger).label(name) for name in (*FIGURES, "attempts")]
        query = select(*columns, *sums, func.sum(used.c.gpu_seconds).label("gpu_seconds"))
        if after is not None and groups:
            position = tuple(unquote(part) for part in after.split(","))
            # PostgreSQL rejects strings with a NUL character.
            if len(position) != len(groups) or any("\0" in part for part in position):
                raise InvalidRequest(
                    Code.REQUEST_INVALID, f"{after!r} is not the id of a line with this grouping.", param="after"
                )
            query = query.where(tuple_(*columns) > position)
        # Without columns to group by, a sum over no rows would still be one line.
        query = query.group_by(*columns).having(func.count() > 0).order_by(*columns).limit(limit + 1)
        with self._db.read() as session:
            for row in session.execute(query, execution_options={"yield_per": ROWS_AT_ONCE}):
                yield self._line(groups, row._asdict())

    def _line(self, groups: Sequence[CostGroup], row: Mapping[str, Any]) -> CostLine:
        prices, labels = self._prices, {group: str(row[group]) for group in groups}
        costs = {
            "gpu_cost": prices.of_gpu(row["gpu_seconds"]),
            "token_cost": prices.of_tokens(row["prompt_tokens"], row["completion_tokens"]),
        }
        return CostLine(
            id=",".join(quote(part, safe=" ") for part in labels.values()),
            **{COST_COLUMNS[group]: value for group, value in labels.items()},
            gpu_minutes=round(row["gpu_seconds"] / 60, 3),
            **{name: row[name] for name in (*FIGURES, "attempts")},
            **{name: None if cost is None else str(cost) for name, cost in costs.items()},
            currency=prices.currency or None,
        )


def _tokens(payer: Payer, period: Period, groups: Sequence[CostGroup]) -> Select[Any]:
    """Return the query of the counted requests."""

    def of_adapter(column: InstrumentedAttribute[str]) -> ColumnElement[Any]:
        """Return a column of the adapter that answered. A deleted adapter keeps its row; a name without one is that of a base."""
        return (
            select(func.min(column))
            .where(AdapterRow.id == UsageRow.model, AdapterRow.tenant.in_([UsageRow.tenant, SHARED]))
            .scalar_subquery()
        )

    name = select(KeyRow.name).where(KeyRow.id == UsageRow.key_id).scalar_subquery()
    columns: dict[CostGroup, ColumnElement[Any] | InstrumentedAttribute[str]] = {
        "day": UsageRow.day,
        "tenant": UsageRow.tenant,
        "key": func.coalesce(name, REMOVED_KEY),
        "base": func.coalesce(of_adapter(AdapterRow.base_model), UsageRow.model),
        "model": UsageRow.model,
        "job": func.coalesce(of_adapter(AdapterRow.job_id), ""),
    }
    query: Select[Any] = select(
        *(columns[group].label(group) for group in groups),
        *(getattr(UsageRow, figure).label(figure) for figure in FIGURES),
        literal(0).label("attempts"),
        literal(0.0, Float).label("gpu_seconds"),
    ).where(UsageRow.day >= period.first.isoformat(), UsageRow.day <= period.last.isoformat())
    if payer.tenant is not None:
        query = query.where(UsageRow.tenant == payer.tenant)
    return query if payer.key_id is None else query.where(UsageRow.key_id == payer.key_id)


def _gpu_time(payer: Payer, period: Period, groups: Sequence[CostGroup], *, is_sqlite: bool) -> Select[Any]:
    """Return the query of the attempts that have ended, by the day on which they began, as quotas count them."""
    columns: dict[CostGroup, ColumnElement[Any] | InstrumentedAttribute[str]] = {
        "day": _day(is_sqlite=is_sqlite),
        "tenant": GpuTimeRow.tenant,
        "key": func.coalesce(JobRow.created_by, ""),
        "base": GpuTimeRow.base_model,
        "model": func.coalesce(JobRow.result["adapter_id"].as_string(), GpuTimeRow.base_model),
        "job": JobRow.id,
    }
    query = (
        select(
            *(columns[group].label(group) for group in groups),
            *(literal(0).label(figure) for figure in FIGURES),
            literal(1).label("attempts"),
            GpuTimeRow.used.label("gpu_seconds"),
        )
        .join(JobRow, JobRow.id == GpuTimeRow.job_id)
        .where(GpuTimeRow.used.is_not(None), GpuTimeRow.started_at >= period.start, GpuTimeRow.started_at <= period.end)
    )
    if payer.tenant is not None:
        query = query.where(GpuTimeRow.tenant == payer.tenant)
    return query if payer.key_id is None else query.where(JobRow.created_by == payer.key_name)


def _day(*, is_sqlite: bool) -> ColumnElement[str]:
    """Return the day of an attempt's beginning, in UTC, as usage has it."""
    seconds = type_coerce(GpuTimeRow.started_at, BigInteger) / 1000
    if is_sqlite:
        return func.strftime("%Y-%m-%d", cast(seconds, BigInteger), "unixepoch")
    return func.to_char(func.timezone("UTC", func.to_timestamp(seconds)), "YYYY-MM-DD")

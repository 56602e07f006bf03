"""Usage: requests and tokens per key, model and day. The API counts them and adds the counts to the rows.

Counts are added to the rows' values and never overwrite them, so several API processes can count concurrently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Literal, NamedTuple

from sqlalchemy import BigInteger, cast, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute

from shared.database.connection import Database
from shared.database.records import Value
from shared.database.tables.keys import KeyRow, UsageRow
from shared.errors import Code, InvalidRequest

Group = Literal["day", "key", "model"]
GROUPS: dict[Group, InstrumentedAttribute[str]] = {
    "day": UsageRow.day,
    "key": UsageRow.key_id,
    "model": UsageRow.model,
}
"""Columns that usage can be grouped by, in the order of the lines."""
SEPARATOR = ","
"""Separator of the parts of a line's id. The model comes last, because it alone could contain a comma."""
REMOVED_KEY = "(of an evaluation)"
"""Name of a key whose record was removed: this happens only to keys that an attempt at a job created for itself."""
FIGURES = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


class UsageAccount(NamedTuple):
    """The columns that identify a usage row."""

    day: str
    """A day in UTC, as in 2026-11-21."""
    key_id: str
    model: str
    """An adapter's id or a base's name; never an alias, because its target may change."""
    tenant: str
    """The key's tenant."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Counts of usage. ``cached_tokens`` are among ``prompt_tokens``."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(*(getattr(self, name) + getattr(other, name) for name in FIGURES))


class UsageLine(Value):
    """Usage of one group. Fields that the lines are not grouped by are None."""

    id: str
    day: str | None = None
    key_id: str | None = None
    key_name: str | None = None
    model: str | None = None
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Period(NamedTuple):
    """A range of days in UTC, both ends included."""

    first: date
    last: date

    @property
    def start(self) -> datetime:
        """Its first moment."""
        return datetime.combine(self.first, time.min, UTC)

    @property
    def end(self) -> datetime:
        """The last moment of its last day."""
        return datetime.combine(self.last, time.max, UTC)


class Usage:
    """Operations on usage; each runs in one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, amounts: Mapping[UsageAccount, Amount]) -> None:
        """Add counts to the rows."""
        if not amounts:
            return
        insert = sqlite.insert if self._db.is_sqlite else postgresql.insert
        # Sorted, so that two processes lock rows in the same order.
        accounts = sorted(amounts)
        rows = [account._asdict() | {name: getattr(amounts[account], name) for name in FIGURES} for account in accounts]
        new = insert(UsageRow)
        added = {name: getattr(UsageRow, name) + new.excluded[name] for name in FIGURES}
        with self._db.write() as session:
            session.execute(new.on_conflict_do_update(index_elements=["day", "key_id", "model"], set_=added), rows)

    def lines(
        self,
        tenant: str,
        period: Period,
        group_by: Sequence[Group],
        *,
        key_id: str | None = None,
        model: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[UsageLine]:
        """Return usage of a tenant's keys by group, ordered by day, key and model.

        Args:
            group_by: columns to group by; without any, the result is one line, or no line when nothing was used.
            after: id of the last line that was returned before.
            limit: the page's size; one line more is returned if more follow.

        Raises:
            InvalidRequest: ``REQUEST_INVALID``: ``after`` is not an id of such a line.
        """
        groups = [group for group in GROUPS if group in group_by]
        columns = [GROUPS[group] for group in groups]
        labelled = [column.label(group) for group, column in zip(groups, columns, strict=True)]
        # PostgreSQL sums up BIGINT to NUMERIC, which would come back as a decimal.
        figures = [cast(func.sum(getattr(UsageRow, name)), BigInteger).label(name) for name in FIGURES]
        query = select(*labelled, *figures).where(
            UsageRow.tenant == tenant,
            UsageRow.day >= period.first.isoformat(),
            UsageRow.day <= period.last.isoformat(),
        )
        if key_id is not None:
            query = query.where(UsageRow.key_id == key_id)
        if model is not None:
            query = query.where(UsageRow.model == model)
        if after is not None and groups:
            position = tuple(after.split(SEPARATOR, len(groups) - 1))
            if len(position) != len(groups):
                raise InvalidRequest(
                    Code.REQUEST_INVALID, f"{after!r} is not the id of a line with this grouping.", param="after"
                )
            query = query.where(tuple_(*columns) > position)
        # Without columns to group by, a sum over no rows would still be one line.
        query = query.group_by(*columns).having(func.count() > 0).order_by(*columns).limit(limit + 1)
        with self._db.read() as session:
            rows = session.execute(query).all()
            ids = {row.key for row in rows} if "key" in groups else set()
            names = {
                row.id: row.name for row in session.execute(select(KeyRow.id, KeyRow.name).where(KeyRow.id.in_(ids)))
            }
        return [_line(groups, row._asdict(), names) for row in rows]


def _line(groups: list[Group], row: dict[str, object], names: dict[str, str]) -> UsageLine:
    figures = {name: row[name] for name in FIGURES}
    group = {name: str(row[name]) for name in groups}
    key_id = group.get("key")
    return UsageLine.model_validate(
        {
            "id": SEPARATOR.join(group.values()),
            "day": group.get("day"),
            "key_id": key_id,
            "key_name": names.get(key_id, REMOVED_KEY) if key_id else None,
            "model": group.get("model"),
            **figures,
        }
    )

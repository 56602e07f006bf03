"""Usage: what each key used of each model on each day. The front door counts, and adds here what it has counted.

It is added to, never set, so several API processes count side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Select, cast, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute

from shared.db import Database
from shared.errors import Code, InvalidRequest
from shared.job import Value
from shared.tables import KeyRow, UsageRow

Group = Literal["day", "key", "model"]
GROUPS: dict[Group, InstrumentedAttribute[str]] = {
    "day": UsageRow.day,
    "key": UsageRow.key_id,
    "model": UsageRow.model,
}
"""What can be told apart, in the order of the lines."""
SEPARATOR = ","
"""Between the parts of a line's id; the model comes last, and only it could hold one."""
FIGURES = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


class Account(NamedTuple):
    """What is counted together."""

    day: str
    """UTC, as in 2026-11-21."""
    key_id: str
    model: str
    """An adapter's id or a base's name; never an alias, which means something else tomorrow."""
    tenant: str
    """The key's."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much was used. ``cached_tokens`` are among ``prompt_tokens``."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(*(getattr(self, name) + getattr(other, name) for name in FIGURES))


class UsageLine(Value):
    """Usage of one group. What the lines are not grouped by is None."""

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
    """Days, both included, UTC."""

    first: date
    last: date


class Usage:
    """Verbs of usage; each is one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, amounts: Mapping[Account, Amount]) -> None:
        """Add what was counted.

        Raises:
            Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        if not amounts:
            return
        insert = sqlite.insert if self._db.is_sqlite else postgresql.insert
        rows = [
            account._asdict() | {name: getattr(amount, name) for name in FIGURES}
            for account, amount in sorted(amounts.items(), key=_account)  # two processes lock rows in the same order
        ]
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
        """Usage of a tenant's keys by group, ordered by day, key and model.

        Args:
            group_by: what is told apart; nothing gives one line, or none when nothing was used.
            after: id of the last line that was seen.
            limit: one line more than that means there is more.

        Raises:
            InvalidRequest: ``REQUEST_INVALID``: ``after`` is no id of such a line.
        """
        groups = [group for group in GROUPS if group in group_by]
        query = _grouped(groups).where(UsageRow.tenant == tenant, *_within(period))
        if key_id is not None:
            query = query.where(UsageRow.key_id == key_id)
        if model is not None:
            query = query.where(UsageRow.model == model)
        if after is not None and groups:
            query = query.where(tuple_(*(GROUPS[group] for group in groups)) > _parts(after, len(groups)))
        with self._db.read() as session:
            found = session.execute(query.limit(limit + 1)).all()
            ids = {row.key for row in found} if "key" in groups else set()
            names = {
                row.id: row.name for row in session.execute(select(KeyRow.id, KeyRow.name).where(KeyRow.id.in_(ids)))
            }
        return [_line(groups, row._asdict(), names) for row in found]


def _account(item: tuple[Account, Amount]) -> Account:
    return item[0]


def _grouped(groups: list[Group]) -> Select[*tuple[Any, ...]]:
    columns = [GROUPS[group].label(group) for group in groups]
    figures = [cast(func.sum(getattr(UsageRow, name)), BigInteger).label(name) for name in FIGURES]
    keys = [GROUPS[group] for group in groups]
    return select(*columns, *figures).group_by(*keys).having(func.count() > 0).order_by(*keys)


def _within(period: Period) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return UsageRow.day >= period.first.isoformat(), UsageRow.day <= period.last.isoformat()


def _parts(line_id: str, count: int) -> tuple[str, ...]:
    parts = line_id.split(SEPARATOR, count - 1)
    if len(parts) != count:
        raise InvalidRequest(Code.REQUEST_INVALID, f"{line_id!r} is no id of a line that is grouped so.", param="after")
    return tuple(parts)


def _line(groups: list[Group], row: dict[str, object], names: dict[str, str]) -> UsageLine:
    figures = {name: row[name] for name in FIGURES}
    group = {name: str(row[name]) for name in groups}
    key_id = group.get("key")
    return UsageLine.model_validate(
        {
            "id": SEPARATOR.join(group.values()),
            "day": group.get("day"),
            "key_id": key_id,
            "key_name": names.get(key_id or ""),
            "model": group.get("model"),
            **figures,
        }
    )

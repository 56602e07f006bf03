"""The part of a table that a pull reads in one snapshot: from the last pull to the upper end, in the order (watermark, key)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from corpus.reading.database import Query, Snapshot, SourceTime
from corpus.reading.pull_spec import PullSpec
from corpus.reading.pull_state import Position
from corpus.reading.values import TimeForm, Watermark, to_json
from shared.errors import Code, InvalidRequest


class PullWindow:
    """The rows of a query that one snapshot must return.

    Args:
        now: the source's clock, read before the snapshot was taken.
        last: the last row of earlier pulls.
        after: values of the order columns at which an earlier snapshot of this pull ended.

    Attributes:
        watermark: form of the watermark; None without one, or if the query has no rows.
        low: lower end (included): the last row's time minus the lag, in the watermark's format.
        is_empty: whether the window contains no rows.
        notes: notes for the caller.

    Raises:
        InvalidRequest: ``CORPUS_QUERY_INVALID``, ``CORPUS_KEY_NOT_UNIQUE``, ``CORPUS_WATERMARK_NULL``,
            ``CORPUS_COLUMN_UNSUPPORTED``.
    """

    def __init__(
        self, spec: PullSpec, snapshot: Snapshot, now: SourceTime, last: Position | None, after: Sequence[Any] | None
    ) -> None:
        self.columns = snapshot.columns(spec.sql)
        self.watermark: Watermark | None = None
        self.low: datetime | None = None
        self.is_empty = False
        self.notes: list[str] = []
        self._spec, self._snapshot = spec, snapshot
        self._conditions: list[str] = []
        self._values: list[Any] = []
        self._numbers = [self._number_of(name) for name in spec.order]
        self._quoted = [snapshot.quote(name) for name in spec.order]
        if spec.watermark:
            self._limit(now, last)
        if after is not None:
            self._begin_after(after)
        elif last is not None and not spec.watermark:
            self._begin_after(last.key)
        if spec.watermark and after is None and not self.is_empty:
            self._refuse_repeated_keys()

    def pages(self) -> Iterator[Sequence[Any]]:
        """Yield the rows, some at a time."""
        order = f"ORDER BY {', '.join(self._quoted)}"
        return self._snapshot.pages(self._query(order), rows=self._spec.limit)

    def order(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return a row's values in the columns that the rows are ordered by."""
        return tuple([row[number] for number in self._numbers])

    def key(self, row: Sequence[Any]) -> list[Any]:
        """Return a row's values in the columns of the key."""
        return [row[number] for number in self._numbers[len(self._numbers) - len(self._spec.key) :]]

    def locator(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return a row's place in the table, as JSON."""
        values = [to_json(row[number], self.columns[number]) for number in self._numbers]
        return {"key": values[1:], "watermark": values[0]} if self._spec.watermark else {"key": values}

    def _query(self, tail: str) -> Query:
        return Query(self._spec.sql, tuple(self._conditions), tuple(self._values), tail)

    def _number_of(self, name: str) -> int:
        names = [column.name for column in self.columns]
        if names.count(name) != 1:
            reason = "more than once" if name in names else "not at all"
            param = "pull.watermark" if name == self._spec.watermark else "pull.key"
            raise InvalidRequest(
                Code.CORPUS_QUERY_INVALID,
                f"The query has the column {name!r} {reason}.",
                remedy=f"It has: {', '.join(names)}. Add the column to the SELECT, or correct `{param}`.",
                param=param,
            )
        return names.index(name)

    def _limit(self, now: SourceTime, last: Position | None) -> None:
        name, spec = self._quoted[0], self._spec
        if self._snapshot.rows("SELECT 1", Query(spec.sql, (f"{name} IS NULL",), tail="LIMIT 1")):
            raise InvalidRequest(
                Code.CORPUS_WATERMARK_NULL,
                f"The watermark {spec.watermark!r} is null in some rows.",
                remedy=(
                    f"Give those rows a time in the query, such as COALESCE({spec.watermark}, created_at) AS "
                    f"{spec.watermark}."
                ),
                param="pull.watermark",
            )
        ((greatest,),) = self._snapshot.rows(f"SELECT max({name})", Query(spec.sql))
        if greatest is None:
            self.is_empty = True
            return
        assert spec.watermark
        self.watermark = watermark = Watermark(spec.watermark, greatest)
        if watermark.form is TimeForm.TEXT:
            # A difference before the digits would decide the order instead of the time: rows would be read at the wrong
            # time, or never.
            forms = f"SELECT DISTINCT substr({name}, 11, 1), ltrim(substr({name}, 20), '.0123456789')"
            watermark.refuse_mixed(self._snapshot.rows(forms, Query(spec.sql, tail="LIMIT 50")))
        upper = now.now - timedelta(seconds=spec.lag)
        if now.oldest and now.oldest < upper:
            upper = now.oldest
            self.notes.append(
                f"A transaction has been running since {now.oldest:%H:%M:%S %Z}; rows after that are left for the "
                "next pull."
            )
        if not now.sees_all:
            self.notes.append(
                "This role cannot see other users' transactions, so only the lag covers rows that are committed "
                "late. GRANT pg_read_all_stats makes them visible."
            )
        if watermark.form is TimeForm.NAIVE:
            self.notes.append(f"{spec.watermark} has no time zone and is taken as UTC.")
        if watermark.moment(greatest) >= upper:
            self.notes.append(f"Rows newer than {_duration(spec.lag)} are left for the next pull.")
        if last is not None:
            bound = watermark.bound(watermark.moment(last.watermark) - timedelta(seconds=spec.lag))
            # Converted back from the column's format, which may be coarser, such as a day: all rows from the bound on
            # are read again.
            self.low = watermark.moment(bound)
            self._conditions.append(f"{name} >= ?")
            self._values.append(bound)
        self._conditions.append(f"{name} < ?")
        self._values.append(watermark.bound(upper))

    def _begin_after(self, order: Sequence[Any]) -> None:
        self._conditions.append(f"({', '.join(self._quoted)}) > ({', '.join('?' for _ in order)})")
        self._values += order

    def _refuse_repeated_keys(self) -> None:
        key = ", ".join(self._quoted[1:])
        if self._snapshot.rows("SELECT 1", self._query(f"GROUP BY {key} HAVING count(*) > 1 LIMIT 1")):
            raise key_not_unique(self._spec.key)


def key_not_unique(key: Sequence[str]) -> InvalidRequest:
    """Return the error for two rows with the same key."""
    return InvalidRequest(
        Code.CORPUS_KEY_NOT_UNIQUE,
        f"Two rows of the query have the same key ({', '.join(key)}).",
        remedy="Name columns that identify a row, such as the primary key; after a JOIN, the keys of both tables.",
        param="pull.key",
    )


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"

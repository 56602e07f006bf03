"""Filters of a list of jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ColumnElement, Text, cast, exists, func, or_, select

from shared.database.job_states import JobState
from shared.database.records import Kind
from shared.database.tables.jobs import JobRow
from shared.database.tables.storable import storable


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Conditions on the jobs of a list; None and empty values admit every job.

    Attributes:
        kind: the job's kind.
        states: allowed states.
        base_model: the job's base.
        alias: the alias that its contract moves.
        created_by: name of the key that submitted it.
        created_after: earliest time of its creation.
        created_before: it was created before this time.
        text: part of its name or base, or the beginning or end of its id.
        labels: labels that it must have.
        has_labels: True: it must have labels; False: it must not have labels; None: both are allowed.
    """

    kind: Kind | None = None
    states: Collection[JobState] = ()
    base_model: str | None = None
    alias: str | None = None
    created_by: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    text: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    has_labels: bool | None = None

    def conditions(self, *, is_sqlite: bool) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions of a query for these jobs."""
        yield from self._equal()
        if self.states:
            yield JobRow.state.in_(self.states)
        if self.created_after:
            yield JobRow.created_at >= self.created_after
        if self.created_before:
            yield JobRow.created_at < self.created_before
        if self.text:
            yield _has_text(storable(self.text))
        if self.has_labels is not None:
            is_empty = cast(JobRow.labels, Text) == "{}"
            yield ~is_empty if self.has_labels else is_empty
        for key, value in self.labels.items():
            yield _has_label(storable(key), storable(value), is_sqlite=is_sqlite)

    def _equal(self) -> Iterator[ColumnElement[bool]]:
        if self.kind:
            yield JobRow.kind == self.kind
        if self.base_model is not None:
            yield JobRow.base_model == storable(self.base_model)
        if self.created_by is not None:
            yield JobRow.created_by == storable(self.created_by)
        if self.alias is not None:
            # A fine-tune job's alias is in a section, an import's is not.
            places = (JobRow.contract["artifact"]["alias"], JobRow.contract["alias"])
            yield or_(*(place.as_string() == storable(self.alias) for place in places))


ALL_JOBS = JobFilter()


def _has_text(text: str) -> ColumnElement[bool]:
    names = (column.icontains(text, autoescape=True) for column in (JobRow.name, JobRow.base_model))
    ids = (JobRow.id.istartswith(text, autoescape=True), JobRow.id.iendswith(text, autoescape=True))
    return or_(*names, *ids)


def _has_label(key: str, value: str, *, is_sqlite: bool) -> ColumnElement[bool]:
    if not is_sqlite:
        condition: ColumnElement[bool] = JobRow.labels[key].as_string() == value
        return condition
    # Not a JSON path, in which the caller's key would have to be quoted.
    pair = func.json_each(JobRow.labels).table_valued("key", "value")
    return exists(select(pair.c.key).where(pair.c.key == key, pair.c.value == value))

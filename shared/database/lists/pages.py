"""Pages of lists whose order an index provides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import Session

from shared.database.tables.adapters import AdapterRow
from shared.database.tables.files import FileRow
from shared.database.tables.jobs import JobRow

ListedRow = TypeVar("ListedRow", JobRow, FileRow, AdapterRow)
ORDERS: dict[type[Any], Sequence[str]] = {AdapterRow: ("created_at", "step", "id")}
"""Columns by which rows are sorted, if not only by id; an index of the table has them after the tenant."""


def page_of_rows(
    session: Session,
    query: Select[Any],
    row: type[ListedRow],
    tenants: Sequence[str],
    limit: int,
    *,
    newest_first: bool,
) -> list[ListedRow]:
    """Return the first rows of the tenants in the order of `ORDERS`, one more than ``limit`` if more follow.

    There is one query per tenant, because only then an index gives the rows in order; a query for several tenants would
    read all their rows.
    """
    columns = [getattr(row, name) for name in ORDERS.get(row, ("id",))]
    order = [column.desc() if newest_first else column.asc() for column in columns]
    rows = _first_of_each(session, query.order_by(*order), row, tenants, limit)
    return sorted(rows, key=place_of, reverse=newest_first)[: limit + 1]


def page_of_job_ids(session: Session, query: Select[Any], tenants: Sequence[str], limit: int) -> list[str]:
    """Return the newest ids of a query for jobs' ids, as `page_of_rows` returns rows."""
    ids = _first_of_each(session, query.order_by(JobRow.id.desc()), JobRow, tenants, limit)
    return sorted(ids, reverse=True)[: limit + 1]


def _first_of_each(
    session: Session, query: Select[Any], row: type[ListedRow], tenants: Sequence[str], limit: int
) -> list[Any]:
    return [
        listed for tenant in tenants for listed in session.scalars(query.where(row.tenant == tenant).limit(limit + 1))
    ]


def place_of(row: JobRow | FileRow | AdapterRow) -> tuple[Any, ...]:
    """Return the values by which a row is sorted."""
    return tuple(getattr(row, name) for name in ORDERS.get(type(row), ("id",)))

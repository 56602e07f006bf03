"""Pages of lists that an index gives in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import Session

from shared.database.tables.files import FileRow
from shared.database.tables.jobs import JobRow

ListedRow = TypeVar("ListedRow", JobRow, FileRow)


def page_of_rows(
    session: Session,
    query: Select[Any],
    row: type[ListedRow],
    tenants: Sequence[str],
    limit: int,
    *,
    newest_first: bool,
) -> list[ListedRow]:
    """Return the first rows of the tenants in the order of their ids, one more than ``limit`` if more follow.

    The query is made for each tenant, so that an index gives its rows in order; for several it would be all of them.
    """
    order = row.id.desc() if newest_first else row.id.asc()
    found = [
        each
        for tenant in tenants
        for each in session.scalars(query.where(row.tenant == tenant).order_by(order).limit(limit + 1))
    ]
    return sorted(found, key=lambda each: each.id, reverse=newest_first)[: limit + 1]

"""Results of a run's items: added by the worker that holds the job's lease, read by every caller who sees the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.records import Value
from shared.database.tables.evaluation import EvalItemRow, EvalRunRow
from shared.errors import Code, NotFound

Status = Literal["pass", "fail", "error"]
PAGE = 500


class NewItem(Value):
    """Result of an item; ``result`` is a `shared.evaluation.types.ItemResult`."""

    position: int
    status: Status
    result: dict[str, Any]


class StoredItem(NewItem):
    """Stored result of an item."""

    run_id: str
    created_at: datetime


class EvalItems:
    """Results of the items of runs that the caller has already looked up (`runs.py`). Each operation runs in one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def positions(self, run_id: str) -> set[int]:
        """Return the positions with a result."""
        with self._db.read() as session:
            return set(session.scalars(select(EvalItemRow.position).where(EvalItemRow.run_id == run_id)))

    def totals(self, run_id: str) -> dict[str, Any]:
        """Return the totals up to the last stored item; empty before the first."""
        with self._db.read() as session:
            return session.scalar(select(EvalRunRow.totals).where(EvalRunRow.id == run_id)) or {}

    def get(self, run_id: str, position: int) -> StoredItem:
        """Return the result of the item at a position.

        Raises:
            NotFound: ``EVAL_ITEM_NOT_FOUND``.
        """
        with self._db.read() as session:
            row = session.get(EvalItemRow, (run_id, position))
            if row is None:
                raise NotFound(
                    Code.EVAL_ITEM_NOT_FOUND,
                    f"The run {run_id} has no output item at position {position} yet.",
                    remedy="List the output items: GET /v1/evals/{eval_id}/runs/{run_id}/output_items.",
                    param="output_item_id",
                )
            return StoredItem.model_validate(row)

    def list(
        self,
        run_id: str,
        *,
        after: int | None = None,
        limit: int = 20,
        newest_first: bool = False,
        status: Status | None = None,
    ) -> Sequence[StoredItem]:
        """Return a page of a run's items by position; one more than ``limit`` if more follow.

        Args:
            after: position of the last item of the page before.
            limit: the page's size.
            newest_first: whether the last position comes first.
            status: status of the items; None: any.
        """
        order = EvalItemRow.position.desc() if newest_first else EvalItemRow.position.asc()
        query = select(EvalItemRow).where(EvalItemRow.run_id == run_id).order_by(order).limit(limit + 1)
        if after is not None:
            query = query.where(EvalItemRow.position < after if newest_first else EvalItemRow.position > after)
        if status:
            query = query.where(EvalItemRow.status == status)
        with self._db.read() as session:
            return [StoredItem.model_validate(row) for row in session.scalars(query)]

    def all(self, run_id: str) -> Iterator[StoredItem]:
        """Iterate over every item of a run, by position."""
        after = -1
        while page := self.list(run_id, after=after, limit=PAGE - 1):
            yield from page
            after = page[-1].position


def add_items(session: Session, run_id: str, items: Sequence[NewItem], totals: dict[str, Any], now: datetime) -> None:
    """Add results of items, with the totals up to them; the caller holds the lease of the run's job."""
    if items:
        rows = [{"run_id": run_id, "created_at": now, **item.model_dump()} for item in items]
        insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
        # They exist already if the confirmation of an earlier commit was lost: the lease excludes other writers.
        session.execute(insert(EvalItemRow).on_conflict_do_nothing(), rows)
    session.execute(update(EvalRunRow).where(EvalRunRow.id == run_id).values(totals=totals))

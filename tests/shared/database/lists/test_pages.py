"""Rows of several tenants: pages in order, read from an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from shared.database.adapters import Adapters
from shared.database.connection import Database
from shared.database.files.files import Files
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from tests.support.builders import claimed, new_adapter, submission


def test_pages_of_two_tenants_have_every_job_once_in_order(database: Database) -> None:
    made = [Jobs(database, tenant).submit(submission())[0].id for tenant in ("shared", "one", "two", "one", "shared")]
    seen, after = [], None
    while page := Jobs(database, "one").list(after=after, limit=2)[:2]:
        seen += [job.id for job in page]
        after = seen[-1]
    assert seen == [made[number] for number in (4, 3, 1, 0)]


@contextmanager
def plans(database: Database) -> Iterator[list[str]]:
    """SQLite's plans of the queries inside."""
    found: list[str] = []

    def explain(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT") and "FROM" in statement:
            rows = connection.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
            found.extend(row[3] for row in rows)

    event.listen(database.engine, "before_cursor_execute", explain)
    yield found
    event.remove(database.engine, "before_cursor_execute", explain)


LISTS: dict[str, Callable[[Database], object]] = {
    "jobs": lambda database: Jobs(database, "one").list(limit=20),
    "jobs, next page": lambda database: Jobs(database, "one").list(after="ftjob-1", limit=20),
    "adapters": lambda database: Adapters(database, "one").page(limit=20),
    "adapters, next page": lambda database: Adapters(database, "one").page(after="demo@1", limit=20),
    "files": lambda database: Files(database, "one").list(after=None, limit=20, purpose=None, newest_first=False),
}


@pytest.mark.parametrize("name", list(LISTS))
def test_lists_sort_and_scan_no_table(database: Database, name: str) -> None:
    if not database.is_sqlite:
        pytest.skip("SQLite explains its plan without statistics")
    leases = Leases(database, 60.0)
    leases.finish(claimed(Jobs(database, "one"), leases), {}, adapters=[new_adapter()])
    with plans(database) as found:
        LISTS[name](database)
    assert found
    assert not [plan for plan in found if "TEMP B-TREE" in plan or plan.startswith("SCAN")], found

"""Work of a SQLite database: queries, steps of its virtual machine, bytes of JSON that it parses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event

from shared.database.connection import Database

STEPS = 10


@dataclass
class Work:
    """Counted work; ``steps`` are steps of SQLite's virtual machine, accurate to ten per query."""

    queries: int = 0
    steps: int = 0
    json_bytes: int = 0


@contextmanager
def counted_work(database: Database) -> Iterator[Work]:
    """Count the work of the queries in the block, except those of the change counter, which a poll makes at any time."""
    work = Work()

    def step() -> int:
        work.steps += STEPS
        return 0

    def parse(text: str) -> Any:
        work.json_bytes += len(text)
        return json.loads(text)

    def begin(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        is_counted = statement.startswith("SELECT") and "changes" not in statement
        work.queries += is_counted
        connection.connection.dbapi_connection.set_progress_handler(step if is_counted else None, STEPS)

    _parse_json_with(database, parse)
    event.listen(database.engine, "before_cursor_execute", begin)
    yield work
    event.remove(database.engine, "before_cursor_execute", begin)
    _parse_json_with(database, None)


def _parse_json_with(database: Database, parse: Callable[[str], Any] | None) -> None:
    """Replace the JSON parser, which statements that were already compiled keep."""
    engine: Any = database.engine
    engine.dialect._json_deserializer = parse
    engine.dialect._type_memos.clear()
    engine.clear_compiled_cache()
    engine.get_execution_options().get("compiled_cache", {}).clear()

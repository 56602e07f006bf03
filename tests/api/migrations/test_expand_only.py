"""Migrations only expand: a process of the previous release can still write and read on the next release's schema.

The schemas are read from the database, before and after each migration, so it does not matter how a migration is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
)

from api.migrate import MIGRATIONS, migrate

CONTRACTED: dict[str, list[str]] = {}
"""By revision, the steps that take something away: what the release before has stopped using, which `test_previous_release.py` shows."""


def contracting_steps(before: MetaData, after: MetaData) -> Iterator[str]:
    """Yield the changes because of which a process for one schema fails on the next one."""
    for name, table in before.tables.items():
        if name not in after.tables:
            yield f"{name} is gone"
            continue
        later = after.tables[name]
        yield from _columns_taken(table, later)
        yield from _columns_required(table, later)
        yield from _rules_added(table, later)


def _columns_taken(table: Table, later: Table) -> Iterator[str]:
    for column in table.columns:
        if column.name not in later.columns:
            yield f"{column} is gone"
            continue
        new = later.columns[column.name]
        if _is_narrower(column.type, new.type):
            yield f"{column} holds less"
        if column.nullable and not new.nullable:
            yield f"{column} may no longer be null"
        if column.server_default is not None and new.server_default is None and not new.nullable:
            yield f"{column} has no default any more"


def _is_narrower(old: Any, new: Any) -> bool:
    if isinstance(old, String) and isinstance(new, String):
        return new.length is not None and (old.length is None or new.length < old.length)
    return type(old) is not type(new)


def _columns_required(table: Table, later: Table) -> Iterator[str]:
    for column in later.columns:
        if column.name not in table.columns and not column.nullable and column.server_default is None:
            yield f"{column} is required"


def _rules_added(table: Table, later: Table) -> Iterator[str]:
    old_keys = _unique_keys(table)
    for key in sorted(_unique_keys(later) - old_keys, key=sorted):
        # Rows that differed before still do where an older key is part of this one; a new column is null in rows of the release before.
        is_new_and_null = any(name not in table.columns and later.columns[name].nullable for name in key)
        if not is_new_and_null and not any(old <= key for old in old_keys):
            yield f"{later.name} ({', '.join(sorted(key))}) must be unique"
    for column in later.columns:
        if column.foreign_keys and column.name in table.columns and not table.columns[column.name].foreign_keys:
            yield f"{column} must refer to a row"


def _unique_keys(table: Table) -> set[frozenset[str]]:
    rules = [rule for rule in table.constraints if isinstance(rule, PrimaryKeyConstraint | UniqueConstraint)]
    indexes = [index for index in table.indexes if index.unique]
    return {frozenset(column.name for column in rule.columns) for rule in (*rules, *indexes)}


# -- the migrations ---------------------------------------------------------------------------------------------------


def test_every_migration_expands_the_schema(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mens.db"
    engine, before, found = create_engine(url), MetaData(), {}
    for script in reversed(list(ScriptDirectory(str(MIGRATIONS)).walk_revisions())):
        migrate(url, script.revision)
        after = MetaData()
        after.reflect(engine)
        found[script.revision] = list(contracting_steps(before, after))
        before = after
    engine.dispose()
    assert len(before.tables) > 15
    assert {revision: steps for revision, steps in found.items() if steps} == CONTRACTED


# -- and what takes something away is found ---------------------------------------------------------------------------


def jobs(*more: Any, name: str = "jobs", owner: Column[Any] | None = None) -> MetaData:
    """A schema of one table."""
    schema = MetaData()
    owner = Column("owner", String(40), nullable=False, server_default="us") if owner is None else owner
    Table(name, schema, Column("id", Integer, primary_key=True), owner, Column("note", String(8)), *more)
    return schema


def step(after: MetaData) -> str | None:
    """The one step from a schema of jobs to another one; None: it only expands."""
    found = list(contracting_steps(jobs(), after))
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (jobs(name="works"), "jobs is gone"),
        (jobs(owner=Column("tenant", String(40), server_default="us")), "jobs.owner is gone"),
        (jobs(owner=Column("owner", String(39), nullable=False, server_default="us")), "jobs.owner holds less"),
        (jobs(owner=Column("owner", Integer, nullable=False, server_default="1")), "jobs.owner holds less"),
        (jobs(owner=Column("owner", String(40), nullable=False)), "jobs.owner has no default any more"),
        (jobs(Column("state", String(8), nullable=False)), "jobs.state is required"),
        (jobs(UniqueConstraint("owner")), "jobs (owner) must be unique"),
        (jobs(Index("ix_note", "note", "owner", unique=True)), "jobs (note, owner) must be unique"),
        (jobs(owner=Column("owner", String(40), ForeignKey("jobs.id"), server_default="us")), "jobs.owner must refer to a row"),
    ],
)  # fmt: skip
def test_contracting_step_is_found(after: MetaData, expected: str) -> None:
    assert step(after) == expected


def test_column_that_may_no_longer_be_null_is_found() -> None:
    before, after = jobs(owner=Column("owner", String(40))), jobs(owner=Column("owner", String(40), nullable=False))
    assert list(contracting_steps(before, after)) == ["jobs.owner may no longer be null"]


@pytest.mark.parametrize(
    "after",
    [
        jobs(),
        jobs(owner=Column("owner", String(64), server_default="us")),
        jobs(owner=Column("owner", Text, nullable=False, server_default="us")),
        jobs(Column("state", String(8))),
        jobs(Column("state", String(8), nullable=False, server_default="queued")),
        jobs(UniqueConstraint("id", "owner")),
        jobs(Column("key", String(8)), UniqueConstraint("owner", "key")),
        jobs(Column("parent", ForeignKey("jobs.id"))),
    ],
)
def test_expanding_step_is_none(after: MetaData) -> None:
    assert step(after) is None

"""Usage: added up by day, key and model, on SQLite and on PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import pairwise

import pytest

from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.usage import FIGURES, Amount, Group, Period, Usage, UsageAccount, UsageLine
from shared.errors import Unavailable

ALWAYS = Period(date(2026, 1, 1), date(2026, 12, 31))
ALL: tuple[Group, ...] = ("day", "key", "model")


@pytest.fixture
def usage(database: Database) -> Usage:
    return Usage(database)


def account(day: int = 1, key: str = "key-a", model: str = "tiny", tenant: str = "acme") -> UsageAccount:
    return UsageAccount(f"2026-11-{day:02}", key, model, tenant)


def figures(line: UsageLine) -> tuple[int, ...]:
    return tuple(getattr(line, name) for name in FIGURES)


def test_amounts_are_added_and_never_set(usage: Usage) -> None:
    usage.add({account(): Amount(1, 10, 4, 5)})
    usage.add({account(): Amount(2, 20, 8, 7), account(model="demo@1"): Amount(1, 1, 0, 1)})
    usage.add({})
    found = {line.model: figures(line) for line in usage.lines("acme", ALWAYS, ALL)}
    assert found == {"tiny": (3, 30, 12, 12), "demo@1": (1, 1, 0, 1)}


def test_concurrent_additions_lose_nothing_and_do_not_deadlock(usage: Usage) -> None:
    # In the other order, so that rows locked in the order of the call would make a deadlock on PostgreSQL.
    there = {account(day, model=f"m{day}"): Amount(1, day, 0, 1) for day in range(1, 29)}
    back = dict(reversed(there.items()))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(usage.add, [there, back] * 10))
    [line] = usage.lines("acme", ALWAYS, [])
    assert figures(line) == (20 * 28, 20 * sum(range(1, 29)), 0, 20 * 28)


def test_usage_is_summed_over_ungrouped_columns(usage: Usage, database: Database) -> None:
    key, _ = Keys(database).create("ci", "acme")
    usage.add({account(1, key.id): Amount(1, 2, 1, 3), account(2, key.id, "demo@1"): Amount(1, 5, 0, 7)})
    usage.add({account(2): Amount(4, 4, 4, 4)})
    by_key = {line.key_id: line for line in usage.lines("acme", ALWAYS, ["key"])}
    assert {name: figures(line) for name, line in by_key.items()} == {key.id: (2, 7, 1, 10), "key-a": (4, 4, 4, 4)}
    assert (by_key[key.id].key_name, by_key["key-a"].key_name) == ("ci", "(of an evaluation)")
    assert (by_key[key.id].day, by_key[key.id].model) == (None, None)
    assert [(line.day, line.requests) for line in usage.lines("acme", ALWAYS, ["day"])] == [
        ("2026-11-01", 1),
        ("2026-11-02", 5),
    ]
    assert [figures(line) for line in usage.lines("acme", ALWAYS, [])] == [(6, 11, 5, 14)]


def test_usage_is_filtered_by_period_key_and_model(usage: Usage) -> None:
    usage.add({account(day, f"key-{name}", model): Amount(1) for day in (1, 2, 3) for name in "ab" for model in "xy"})
    usage.add({account(tenant="shared", key="key-s"): Amount(100)})

    def total(period: Period = ALWAYS, key_id: str | None = None, model: str | None = None) -> int:
        [line] = usage.lines("acme", period, [], key_id=key_id, model=model)
        return line.requests

    assert total() == 12
    assert total(Period(date(2026, 11, 2), date(2026, 11, 2))) == 4
    assert total(Period(date(2026, 11, 2), date(2026, 11, 3))) == 8
    assert total(key_id="key-a") == 6
    assert total(model="x", key_id="key-b") == 3
    assert usage.lines("acme", ALWAYS, [], model="z") == []
    assert usage.lines("nobody", ALWAYS, ALL) == []


@pytest.mark.parametrize("groups", [["day"], ["model", "day"], list(ALL)])
def test_pages_list_every_line_once_in_order(usage: Usage, groups: list[Group]) -> None:
    usage.add({account(day, f"key-{name}", f"m,{name}"): Amount(1) for day in (3, 1, 2) for name in "cab"})
    whole = usage.lines("acme", ALWAYS, groups, limit=100)
    paged: list[UsageLine] = []
    while page := usage.lines("acme", ALWAYS, groups, after=paged[-1].id if paged else None, limit=2)[:2]:
        paged += page
    assert paged == whole
    keys = [(line.day, line.key_id or "", line.model or "") for line in whole]
    assert all(one < other for one, other in pairwise(keys))


def test_unreachable_database_is_unavailable(tmp_path) -> None:
    away = Usage(Database("postgresql+psycopg://nobody@127.0.0.1:9/none"))
    with pytest.raises(Unavailable):
        away.add({account(): Amount(1)})

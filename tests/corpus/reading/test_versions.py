"""Versions of keys: the last event of each key decides, with little memory; a version that a filter leaves out replaces
the earlier ones.
"""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.reading.deletions import GONE_NAME, compare_keys
from corpus.reading.newest import write_newest
from corpus.reading.pull_spec import PullSpec
from corpus.reading.versions import LEFT_OUT_NAME, KeyEvents
from tests.support.killed_renames import each_kill
from tests.support.source_tables import SourceTable

KEYS = st.lists(st.sampled_from([[1], ["1"], [1, 2], ["a"], [None], [True]]), max_size=30)
MARKS = st.lists(st.tuples(st.sampled_from([[1], ["1"], [1, 2], ["a"]]), st.integers(0, 30)), max_size=10)


@given(keys=KEYS, marks=MARKS)
def test_row_counts_if_nothing_of_its_key_follows(keys: list[Any], marks: list[tuple[Any, int]]) -> None:
    events = KeyEvents()
    for number, key in enumerate(keys):
        events.add_row(key, number)
    for key, rows in marks:
        events.add_mark(key, rows)
    names = list(map(json.dumps, keys))  # 1 and true are different keys, and equal in Python
    ends = [(json.dumps(key), rows) for key, rows in marks]
    expected = [
        name not in names[number + 1 :] and not any(name == other and number < rows for other, rows in ends)
        for number, name in enumerate(names)
    ]
    assert events.last()[: len(keys)].tolist() == expected


def test_memory_does_not_grow_with_the_length_of_keys() -> None:
    def peak(length: int) -> int:
        tracemalloc.start()
        events = KeyEvents()
        for number in range(20_000):
            events.add_row([f"{number}{'x' * length}"], number)
        assert events.last().all()
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held

    short = peak(1)
    assert short < 20_000 * 100
    assert peak(500) < short + 20_000


def newest(table: SourceTable, path: Path) -> list[str]:
    write_newest(table.folder, path)
    return [json.loads(line)["response"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "answer", ["NULL", "'gh' || 'p_a1B2c3a1B2c3a1B2c3a1B2c3a1B2c3a1B2c3'", "' '"], ids=["null", "secret", "blank"]
)
def test_newest_version_that_is_left_out_takes_the_older_one_with_it(
    table: SourceTable, tmp_path: Path, answer: str
) -> None:
    table.add(range(1, 4))
    table.pull()
    train = tmp_path / "train.jsonl"
    table.execute(f"UPDATE notes SET answer = {answer}, changed = {table.ago(1800)} WHERE id = 2")
    report = table.pull()
    assert (report.rows, report.dropped.total()) == (0, 1)
    assert newest(table, train) == ["answer 1", "answer 3"]
    size = (table.folder / LEFT_OUT_NAME).stat().st_size
    table.pull()
    assert (table.folder / LEFT_OUT_NAME).stat().st_size == size
    table.execute(f"UPDATE notes SET answer = 'right', changed = {table.ago(1700)} WHERE id = 2")
    table.pull()
    assert newest(table, train) == ["answer 1", "answer 3", "right"]
    table.execute("DELETE FROM notes WHERE id <> 2")
    assert compare_keys(PullSpec.of(table.spec), table.address(), table.folder) == 2
    assert (table.folder / GONE_NAME).read_text() == "[1]\n[3]\n"
    assert newest(table, train) == ["right"]


def test_killed_pull_forgets_no_version_that_was_left_out(tmp_path: Path) -> None:
    def run(place: Path) -> SourceTable:
        is_new = not (place / "desk.db").exists()
        table = SourceTable(f"sqlite:///{place / 'desk.db'}", place / "pulled")
        if is_new:
            table.create()
            table.add(range(1, 4))
        table.pull(shard_bytes=150, limit=2)
        table.execute(
            f"UPDATE notes SET answer = NULL, changed = {table.ago(1800)} WHERE id = 2",
            f"INSERT OR REPLACE INTO notes VALUES (9, 'question 9', 'answer 9', {table.ago(1700)})",
        )
        table.pull(shard_bytes=150, limit=2)
        return table

    kills = 0
    for place in each_kill(tmp_path, run):
        kills += 1
        assert newest(run(place), tmp_path / "train.jsonl") == ["answer 1", "answer 3", "answer 9"]
    assert kills > 8

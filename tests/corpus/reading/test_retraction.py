"""Retraction: a retracted key is never pulled again, whatever the table does; the files with its rows are named."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from corpus.build import build
from corpus.generation.generating import Generation
from corpus.reading.newest import write_newest
from corpus.reading.pull_state import read_state
from corpus.reading.retraction import find_affected, find_unmatched, parse_keys, retract
from corpus.recipe import read_recipe
from corpus.sources import find_files
from shared.errors import Code, MensError
from shared.hashing import digest_file
from tests.corpus.mixing.mixes import mixed
from tests.support.source_tables import SourceTable

RECIPE = """
pull:
  source: shop.db
  sql: SELECT id, question, answer FROM tickets
  key: id
  redact: []
  row: {prompt: "{{ item.question }}", response: "{{ item.answer }}"}
mix: {output: train.jsonl}
"""


def answers(folder: Path) -> list[str]:
    list(build(read_recipe(folder / "recipe.yaml"), folder / "recipe.yaml"))
    return sorted(json.loads(line)["response"] for line in (folder / "train.jsonl").read_text().splitlines())


def test_retracted_key_stays_out_of_every_later_build(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE tickets (id INTEGER PRIMARY KEY, question TEXT, answer TEXT)")
        database.executemany(
            "INSERT INTO tickets VALUES (?, ?, ?)", [(n, f"question {n}", f"answer {n}") for n in range(4)]
        )
    assert answers(tmp_path) == [f"answer {number}" for number in range(4)]
    pulled, keys = tmp_path / "corpus" / "pulled", tmp_path / "keys.jsonl"
    keys.write_text("[1]\n3\n\n")
    wanted = parse_keys(keys)
    assert wanted == [[1], [3]]
    affected = list(find_affected(pulled, tmp_path, wanted))
    assert {(Path(one.path).name, one.rows) for one in affected} == {("train.jsonl", 2), ("pulled.jsonl", 2)}
    assert digest_file(tmp_path / "train.jsonl") in {one.sha256 for one in affected}
    assert (retract(pulled, wanted), retract(pulled, wanted), retract(pulled, [[2]])) == (2, 0, 1)
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("UPDATE tickets SET answer = 'changed' WHERE id = 3")
    assert answers(tmp_path) == ["answer 0"]
    assert not list(find_affected(pulled, tmp_path, wanted))


@pytest.fixture
def pulled(tmp_path: Path) -> Path:
    table = SourceTable(f"sqlite:///{tmp_path / 'desk.db'}", tmp_path / "pulled")
    table.create()
    table.add(range(4))
    table.pull()
    return tmp_path / "pulled"


def test_pull_with_retracted_keys_is_not_a_source(pulled: Path) -> None:
    assert find_files(pulled)
    retract(pulled, [[1]])
    columns = [{"name": "a", "sampler": "rows", "file": "pulled/part-00000.jsonl"}]
    generation = pulled.parent / "columns.json"
    generation.write_text(json.dumps({"rows": 1, "columns": columns, "row": {"prompt": "p", "response": "r"}}))
    reads = (
        lambda: find_files(pulled),
        lambda: find_files(pulled / "part-00000.jsonl"),
        lambda: mixed(pulled.parent, "pulled"),
        lambda: Generation(generation).inputs(),
    )
    for read in reads:
        with pytest.raises(MensError, match="retracted") as raised:
            read()
        assert raised.value.code is Code.CORPUS_ROWS_RETRACTED
    assert write_newest(pulled, pulled.parent / "newest.jsonl") == 3
    assert find_files(pulled.parent / "newest.jsonl")


def test_key_of_another_type_matches_no_row(pulled: Path) -> None:
    assert find_unmatched(pulled, [[2], ["2"], [2, 2], [99]]) == [["2"], [2, 2], [99]]


def test_mismatch_says_how_to_keep_retracted_keys(pulled: Path) -> None:
    (pulled / "pull.state.json").write_text("{")
    with pytest.raises(MensError) as raised:
        read_state(pulled)
    assert "retracted" not in raised.value.remedy
    (pulled / "retracted.jsonl").write_text("[1]\n")
    with pytest.raises(MensError) as raised:
        read_state(pulled)
    assert "Copy retracted.jsonl" in raised.value.remedy


def test_file_that_is_not_provenance_is_skipped(pulled: Path) -> None:
    write_newest(pulled, pulled.parent / "newest.jsonl")
    (pulled.parent / "foreign.sources.jsonl").write_text('{"title": "not ours"}\n')
    (pulled.parent / "foreign.jsonl").write_text("{}\n")
    skipped: list[Path] = []
    (found,) = find_affected(pulled, pulled.parent, [[1]], skipped)
    assert (Path(found.path).name, found.rows) == ("newest.jsonl", 1)
    assert [path.name for path in skipped] == ["foreign.sources.jsonl"]


@pytest.mark.parametrize("key", ['{"a": 1}', "null", "[]", "[[1]]", "[null]"])
def test_what_is_not_a_key_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "keys.jsonl").write_text(f"1\n{key}\n")
    with pytest.raises(MensError, match="Line 2") as raised:
        parse_keys(tmp_path / "keys.jsonl")
    assert raised.value.code is Code.REQUEST_INVALID


def test_wrong_keys_and_folders_have_a_code(tmp_path: Path) -> None:
    (tmp_path / "keys.jsonl").write_text("[1]\nnot JSON\n")
    with pytest.raises(MensError, match="Line 2") as raised:
        parse_keys(tmp_path / "keys.jsonl")
    assert raised.value.code is Code.REQUEST_INVALID
    with pytest.raises(MensError) as raised:
        retract(tmp_path, [[1]])
    assert raised.value.code is Code.CORPUS_SOURCE_MISSING

"""Retraction: a key never comes again, whatever the table does; the files with its rows are named."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from shared.corpus.build import build
from shared.corpus.reading.retraction import find_affected, parse_keys, retract
from shared.corpus.recipe import read_recipe
from shared.errors import Code, MensError
from shared.hashing import digest_file

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


def test_wrong_keys_and_folders_have_a_code(tmp_path: Path) -> None:
    (tmp_path / "keys.jsonl").write_text("[1]\nnot JSON\n")
    with pytest.raises(MensError, match="Line 2") as raised:
        parse_keys(tmp_path / "keys.jsonl")
    assert raised.value.code is Code.REQUEST_INVALID
    with pytest.raises(MensError) as raised:
        retract(tmp_path, [[1]])
    assert raised.value.code is Code.CORPUS_SOURCE_MISSING

"""Builds: each stage runs once, and again after a change, with the reason; equal bytes after a kill at any rename."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from corpus.build import DIGESTS_NAME, build
from corpus.file_digests import FileDigests
from corpus.provenance import read_provenance
from corpus.recipe import read_recipe
from corpus.shards import StageWriter, read_index
from shared.errors import Code, MensError
from shared.hashing import digest_file, digest_stream
from tests.support.killed_renames import each_kill

CODE = '''
def add(left: int, right: int) -> int:
    """Return the sum of two numbers, which may be negative or zero."""
    total = left + right
    return total


def longest(words: list[str]) -> str:
    """Return the longest of some words, the first of several equally long ones."""
    found = ""
    for word in words:
        if len(word) > len(found):
            found = word
    return found
'''
RECIPE = """
pull:
  source: shop.db
  sql: SELECT id, question, answer FROM tickets
  key: id
  redact: []
  row: {prompt: "{{ item.question }}", response: "{{ item.answer }}"}
extract: {paths: [source], language: [python]}
mix: {output: train.jsonl}
"""


def prepare(folder: Path) -> Path:
    """A folder with a table, source code and a recipe. An existing one stays as it is."""
    (folder / "source").mkdir(parents=True, exist_ok=True)
    (folder / "source" / "sums.py").write_text(CODE)
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("CREATE TABLE IF NOT EXISTS tickets (id INTEGER PRIMARY KEY, question TEXT, answer TEXT)")
        rows = [(number, f"Where is order {number}?", f"It is in hall {number}.") for number in range(30)]
        database.executemany("INSERT OR REPLACE INTO tickets VALUES (?, ?, ?)", rows)
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml"


def actions(recipe: Path, *, to: str = "mix", dry_run: bool = False) -> dict[str, str]:
    found = build(read_recipe(recipe), recipe, to=to, dry_run=dry_run)
    return {action.name: action.reason if action.runs else "done" for action in found}


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "train.jsonl").read_bytes()).hexdigest()


PULL_AGAIN = {"pull": "the table may have new rows"}


def test_stages_run_once_and_again_after_a_change_with_the_reason(tmp_path: Path) -> None:
    recipe = prepare(tmp_path)
    later = {"pairs": "depends on earlier stages", "mix": "depends on earlier stages"}
    assert actions(recipe, dry_run=True) == {"pull": "new", "extract": "new", **later}
    assert not (tmp_path / "corpus").exists()
    assert actions(recipe) == dict.fromkeys(("pull", "extract", "pairs", "mix"), "new")
    before = digest(tmp_path)
    done = PULL_AGAIN | dict.fromkeys(("extract", "pairs", "mix"), "done")
    assert actions(recipe) == done
    assert digest(tmp_path) == before
    (tmp_path / "source" / "sums.py").write_text(CODE.replace("total", "result"))
    changed = PULL_AGAIN | dict.fromkeys(("extract", "pairs", "mix"), "input changed")
    assert actions(recipe) == changed
    recipe.write_text(RECIPE.replace("mix:", "pairs: {rules: [explain]}\nmix:"))
    assert actions(recipe)["pairs"] == "rule changed"
    (tmp_path / "corpus" / "pairs" / "part-00000.jsonl").write_text("{}\n")
    assert actions(recipe)["pairs"] == "shard changed"
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("INSERT INTO tickets VALUES (99, 'Who?', 'Ann.')")
    assert actions(recipe) == done | {"mix": "input changed"}
    assert "Who?" in (tmp_path / "train.jsonl").read_text()


def test_build_in_which_nothing_has_changed_reads_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(file: BinaryIO) -> str:
        read.append(Path(file.name).name)
        return digest_stream(file)

    monkeypatch.setattr("corpus.file_digests.digest_stream", noted)
    monkeypatch.setattr("corpus.file_digests.QUIET_NANOSECONDS", -1)
    (tmp_path / "a.jsonl").write_text('{"prompt": "q", "response": "a"}\n')
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("mix: {output: train.jsonl, sources: [{path: a.jsonl}]}\n")
    assert actions(recipe) == {"mix": "new"}
    assert actions(recipe) == {"mix": "done"}
    assert sorted(read) == ["a.jsonl", "train.jsonl", "train.sources.jsonl"]
    assert actions(recipe) == actions(recipe, dry_run=True) == {"mix": "done"}
    assert len(read) == 3
    (tmp_path / "train.jsonl").write_text((tmp_path / "train.jsonl").read_text().replace("q", "Q"))
    assert actions(recipe) == {"mix": "input changed"}


def test_build_ends_at_the_named_stage(tmp_path: Path) -> None:
    recipe = prepare(tmp_path)
    assert list(actions(recipe, to="extract")) == ["pull", "extract"]
    assert not (tmp_path / "train.jsonl").exists()


def test_killed_at_any_rename_the_next_build_gives_the_same_bytes(tmp_path: Path) -> None:
    def run(folder: Path) -> None:
        actions(prepare(folder))

    run(tmp_path / "whole")
    expected, kills = digest(tmp_path / "whole"), 0
    for folder in each_kill(tmp_path, run):
        kills += 1
        run(folder)
        assert digest(folder) == expected
    assert kills > 8


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("mix: {output: a}\n", "mix.sources"),
        (RECIPE + "mxi: {}\n", "mxi"),
        (RECIPE.replace("language: [python]", "languages: [python]"), "extract.language"),
        (RECIPE.replace("key: id", "keys: id"), "pull.key"),
        ("pull: {}\n", "mix"),
    ],
)
def test_fault_of_a_recipe_is_named(tmp_path: Path, text: str, param: str) -> None:
    recipe = prepare(tmp_path)
    recipe.write_text(text)
    with pytest.raises(MensError) as raised:
        actions(recipe)
    assert (raised.value.code, raised.value.param) == (Code.CORPUS_RECIPE_INVALID, param)
    assert not (tmp_path / "corpus").exists()


def test_redaction_rules_lie_in_the_folder_of_the_recipe(tmp_path: Path) -> None:
    recipe = prepare(tmp_path)
    (tmp_path / "people.rules").write_text("hall => HERE\n")
    recipe.write_text(RECIPE.replace("redact: []", "redact: ./people.rules"))
    reports = []
    list(build(read_recipe(recipe), recipe, to="pull", note_pull=lambda report, _: reports.append(report)))
    assert "It is in HERE 3." in (tmp_path / "corpus" / "pulled.jsonl").read_text()
    assert reports[0].redactions.total() == 30


FILTERED = """
generate: {recipe: columns.yaml, rows: 4}
filters: {personal_data: [./people.rules]}
mix:
  output: train.jsonl
  sources: [{path: corpus/generated}, {path: tickets.jsonl}, {path: absent.jsonl, optional: true}]
"""
COLUMNS = """
rows: 2
columns: [{name: n, sampler: sequence}]
row: {prompt: "What is number {{ item.n }}?", response: "It is {{ item.n }}, says Ann Lee."}
"""


def test_generated_rows_and_files_are_filtered_before_they_are_mixed(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(FILTERED)
    (tmp_path / "columns.yaml").write_text(COLUMNS)
    (tmp_path / "people.rules").write_text("Ann Lee => <PERSON>\n")
    secret = "gh" + "p_" + "a1B2c3" * 6
    (tmp_path / "tickets.jsonl").write_text(
        f'{{"prompt": "Who?", "response": "Ann Lee."}}\n{{"prompt": "Key?", "response": "{secret}"}}\nnot JSON\n'
    )
    filters = ("filter corpus/generated", "filter tickets.jsonl")
    assert actions(recipe, dry_run=True) == {
        "generate": "new", "filter": "depends on earlier stages", "mix": "depends on earlier stages"
    }  # fmt: skip
    assert actions(recipe) == dict.fromkeys(("generate", *filters, "mix"), "new")
    text = (tmp_path / "train.jsonl").read_text()
    assert (text.count("<PERSON>"), text.count("\n")) == (5, 5)
    found = {path: path.read_text() for path in (tmp_path / "corpus" / "filtered").rglob("*.jsonl")}
    assert len(found) == 4
    assert not any("Ann" in content or secret in content for content in found.values())
    origins = list(read_provenance(tmp_path / "train.sources.jsonl"))
    assert {one.redactions["RULE"] for one in origins} == {1}
    # An unkeyed digest of the line before would confirm guesses of what was replaced.
    assert {one.content_sha256 for one in origins} == {None}
    assert {one.locator.get("line") for one in origins} == {None, 1}
    report = read_index(tmp_path / "corpus" / "filtered" / "01")
    assert report
    assert report.report == {"dropped": {"ROW_NOT_JSON": 1, "SECRET": 1}, "redactions": {"RULE": 1}}
    done = dict.fromkeys(("generate", *filters, "mix"), "done")
    assert actions(recipe) == done
    (tmp_path / "people.rules").write_text("Ann Lee => <NAME>\n")
    assert actions(recipe) == done | dict.fromkeys(filters, "rule changed") | {"mix": "input changed"}
    assert (tmp_path / "train.jsonl").read_text().count("<NAME>") == 5


@pytest.mark.parametrize("filters", ["", "filters: {secrets: true}\n"], ids=["mix", "filter"])
def test_stage_that_runs_compares_what_it_reads_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: str
) -> None:
    """A shard with the times of the one before, as on a file system that lost a write, is found before its rows are used."""
    monkeypatch.setattr("corpus.file_digests.QUIET_NANOSECONDS", -1)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(filters + "mix: {output: train.jsonl, sources: [{path: rows}]}\n")
    row = b'{"prompt": "q", "response": "a"}'
    with StageWriter(tmp_path / "rows", stage="x", key="k") as writer:
        writer.write_line(row)
    shard = tmp_path / "rows" / "part-00000.jsonl"
    digests, before = FileDigests(tmp_path / "corpus" / DIGESTS_NAME), digest_file(shard)
    shard.write_bytes(row.replace(b"q", b"Q") + b"\n")
    monkeypatch.setattr("corpus.file_digests.digest_stream", lambda _file: before)
    digests.of(shard)
    digests.save()
    with pytest.raises(MensError) as caught:
        actions(recipe)
    assert caught.value.code is Code.CORPUS_SHARD_CHANGED
    assert not (tmp_path / "train.jsonl").exists()
    assert not (tmp_path / "corpus" / "filtered").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("corpus/build.json", b'{"\xff": {}}'),
        ("corpus/filtered/00/index.json", b'{"stage": "\xff"}'),
        ("train.mix_report.json", b'{"config_path": "\xff"}'),
    ],
)
def test_file_of_a_build_that_is_not_text_is_written_again(tmp_path: Path, name: str, content: bytes) -> None:
    recipe = tmp_path / "recipe.yaml"
    (tmp_path / "a.jsonl").write_text('{"prompt": "q", "response": "a"}\n')
    recipe.write_text("filters: {secrets: true}\nmix: {output: train.jsonl, sources: [{path: a.jsonl}]}\n")
    actions(recipe)
    path = tmp_path / name
    path.write_bytes(content)
    (tmp_path / "a.jsonl").write_text('{"prompt": "Q", "response": "a"}\n')
    assert actions(recipe)["mix"] != "done"
    assert b"\xff" not in path.read_bytes()


def test_changed_file_of_rules_reads_the_table_again(tmp_path: Path) -> None:
    recipe = prepare(tmp_path)
    recipe.write_text(RECIPE.replace("redact: []", "redact: [./halls.rules]"))
    for name in ("ROOM", "PLACE"):
        (tmp_path / "halls.rules").write_text(f"hall => {name}\n")
        actions(recipe)
        text = (tmp_path / "train.jsonl").read_text()
        assert text.count(name) == 30
        assert " hall " not in text


def test_dry_run_makes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MENS_CORPUS_KEY", raising=False)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("filters: {personal_data: [patterns]}\nmix: {output: train.jsonl, sources: [{path: a.jsonl}]}\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "Who?", "response": "Ann."}\n')
    assert actions(recipe, dry_run=True)["filter a.jsonl"] == "new"
    assert not (tmp_path / "home").exists()
    assert actions(recipe)["filter a.jsonl"] == "new"
    assert actions(recipe, dry_run=True)["filter a.jsonl"] == "done"


def test_build_without_a_table_or_a_model_loads_no_client_of_either() -> None:
    code = "import sys, corpus.build; print(sorted({'sqlalchemy', 'httpx', 'jsonschema_rs'} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"

"""``mens corpus retract``, ``stats``, ``validate`` and ``where --adapter``: their output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.hashing import digest_file
from tests.corpus.mixing.mixes import mixed, write_rows
from tests.support.source_tables import SourceTable

runner = CliRunner()


def said(*arguments: object, code: int = 0) -> str:
    result = runner.invoke(app, ["corpus", *map(str, arguments)], terminal_width=400)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with a pull and a mix of it."""
    table = SourceTable(f"sqlite:///{tmp_path / 'desk.db'}", tmp_path / "pulled")
    table.create()
    table.add(range(4))
    table.pull()
    mixed(tmp_path, "pulled")
    return tmp_path


def adapters(monkeypatch: pytest.MonkeyPatch, train: Path) -> None:
    listed: list[dict[str, Any]] = [
        {"id": "desk-1", "manifest": {"source_digests": {"train": digest_file(train)}}},
        {"id": "other-2", "manifest": {"source_digests": {"train": "0" * 64}}},
        {"id": "imported-3", "manifest": {}},
    ]
    monkeypatch.setattr("cli.client.trained_adapters.find_pages", lambda _path: iter(listed))


def test_retracted_keys_name_files_and_adapters(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapters(monkeypatch, corpus / "out" / "train.jsonl")
    (corpus / "keys.jsonl").write_text("1\n2\n")
    shown = said("retract", corpus / "pulled", "--keys", corpus / "keys.jsonl", "--in", corpus, "--adapters")
    assert "2 new keys of 2 keys retracted" in shown
    assert "train.jsonl has 2 rows with retracted keys\n  adapter desk-1 was trained on it\n" in shown
    found = json.loads(
        said("retract", corpus / "pulled", "--keys", corpus / "keys.jsonl", "--in", corpus, "--adapters", "--json")
    )
    assert (found["keys"], found["new"]) == (2, 0)
    assert [one["adapters"] for one in found["files"]] == [["desk-1"]]


def test_row_leads_to_adapters_and_an_adapter_to_its_rows(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = corpus / "out" / "train.jsonl"
    adapters(monkeypatch, train)
    row = json.loads(train.read_text().splitlines()[0])["id"]
    assert "  adapters: desk-1\n" in said("where", row, "--in", corpus, "--adapters")
    (pulled, mix) = sorted(
        json.loads(said("where", row, "--in", corpus, "--adapters", "--json")), key=lambda one: len(one["adapters"])
    )
    assert (pulled["adapters"], mix["adapters"]) == ([], ["desk-1"])

    class Manifest:
        source_digests: dict[str, str] = {"train": digest_file(train)}

    monkeypatch.setattr("cli.commands.corpus.where.find_or_read_manifest", lambda _name: Manifest)
    assert said("where", "--adapter", "desk", "--in", corpus) == f"train: {train}\n  sql:desk: 4 rows\n"
    Manifest.source_digests = {"train": "0" * 64}
    result = json.loads(said("where", "--adapter", "desk", "--in", corpus, "--json", code=1))
    assert result["error"]["code"] == "CORPUS_ROW_NOT_FOUND"
    said("where", "--in", corpus, code=2)


def test_adapter_leads_to_its_file_among_provenance_of_others(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program's *.sources.jsonl hides no file of an adapter, whatever stands in it."""
    train = corpus / "out" / "train.jsonl"
    (corpus / "keep.jsonl").write_text('{"prompt": "q", "response": "a"}\n')
    (corpus / "keep.sources.jsonl").write_text('{"who": "another program"}\n')

    class TwoFiles:
        source_digests: dict[str, str] = {"train": digest_file(train), "validation": digest_file(corpus / "keep.jsonl")}

    monkeypatch.setattr("cli.commands.corpus.where.find_or_read_manifest", lambda _name: TwoFiles)
    (corpus / "folder.sources.jsonl").mkdir()
    assert said("where", "--adapter", "desk", "--in", corpus).splitlines() == [
        f"validation: {corpus / 'keep.jsonl'}",
        "  keep.sources.jsonl is not provenance of a corpus",
        f"train: {train}",
        "  sql:desk: 4 rows",
    ]
    found = json.loads(said("where", "--adapter", "desk", "--in", corpus, "--json"))
    assert [one["sources"] for one in found] == [None, {"sql:desk": 4}]


@pytest.mark.parametrize(
    "command",
    [
        "data check",
        "data check other.jsonl --validation",
        "train",
        "train other.jsonl --validation",
        "plan",
        "corpus validate",
        "corpus eval",
        "data convert -o x.jsonl",
    ],
)
def test_retracted_rows_are_neither_checked_nor_trained_on(
    corpus: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard of a pull still has the rows of retracted keys."""
    monkeypatch.chdir(corpus)
    write_rows(corpus / "other.jsonl", {"prompt": "q", "response": "a"})
    (corpus / "pulled" / "retracted.jsonl").write_text("[1]\n")
    result = runner.invoke(app, [*command.split(), "pulled/part-00000.jsonl"], terminal_width=400)
    assert result.exit_code == 1
    assert "CORPUS_ROWS_RETRACTED" in result.output
    assert "mens corpus pull --file" in result.output


def test_statistics_are_shown_and_low_diversity_fails(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", *({"prompt": "q", "response": f"a {number // 3}"} for number in range(9)))
    shown = said("stats", tmp_path / "a.jsonl")
    assert "a.jsonl: 9 rows\ndiversity 0.33: 6 equal and 0 similar rows\n" in shown
    assert json.loads(said("stats", tmp_path / "a.jsonl", "--json"))["exact_duplicates"] == 6
    assert "CORPUS_DIVERSITY_LOW" in said("stats", tmp_path / "a.jsonl", "--min-diversity", 0.4, code=1)
    said("stats", tmp_path / "a.jsonl", "--min-diversity", 0.33)


def test_validated_and_quarantined_rows_are_counted(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "a.jsonl", {"prompt": "q", "response": "```python\n(\n```"}, {"prompt": "q", "response": "words"}
    )
    shown = said("validate", tmp_path / "a.jsonl", "--language", "python", "--out", tmp_path / "out")
    assert "validated.jsonl: 1 row\n" in shown
    assert "quarantine.jsonl: NOT_COMPILING 1\n" in shown
    assert "CHECKER_NOT_FOUND" in said("validate", tmp_path / "a.jsonl", "--language", "klingon", code=1)

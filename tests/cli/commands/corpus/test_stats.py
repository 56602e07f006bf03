"""``mens corpus stats`` and ``retract`` with files of other programs in the folder, and their exit codes if nothing
matches.
"""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from cli.main import app
from tests.corpus.mixing.mixes import mixed, write_rows
from tests.support.source_tables import SourceTable

runner = CliRunner()


def said(*arguments: object, code: int = 0) -> str:
    result = runner.invoke(app, ["corpus", *map(str, arguments)], terminal_width=400)
    assert result.exit_code == code, result.output
    return result.output


def test_file_without_a_valid_row_has_no_diversity_and_foreign_provenance_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", {"prompt": "q", "response": "a"})
    (tmp_path / "bad.jsonl").write_text("{}\n")
    assert "has no valid row" in said("stats", tmp_path / "bad.jsonl", "--min-diversity", 0.4, code=1)
    (tmp_path / "a.sources.jsonl").write_text('{"title": "not ours"}\n')
    assert "note: a.sources.jsonl is not a file of provenance" in said("stats", tmp_path / "a.jsonl")


def test_key_without_a_row_and_a_foreign_file_are_named(tmp_path: Path) -> None:
    corpus = tmp_path
    table = SourceTable(f"sqlite:///{corpus / 'desk.db'}", corpus / "pulled")
    table.create()
    table.add(range(4))
    table.pull()
    mixed(corpus, "pulled")
    (corpus / "keys.jsonl").write_text('"1"\n2\n')
    (corpus / "my.sources.jsonl").write_text('{"title": "not ours"}\n')
    (corpus / "my.jsonl").write_text("{}\n")
    command = ["retract", corpus / "pulled", "--keys", corpus / "keys.jsonl", "--in", corpus]
    shown = said(*command, code=1)
    assert 'has 1 key: ["1"]' in shown
    assert "my.sources.jsonl has a line that is not provenance" in shown
    assert "train.jsonl has 1 row with retracted keys" in shown
    printed = json.loads(said(*command, "--json", code=1))
    assert (printed["unmatched"], printed["skipped"]) == ([["1"]], [str(corpus / "my.sources.jsonl")])
    assert json.loads((corpus / "pulled" / "retracted.jsonl").read_text().splitlines()[-1]) == [2]

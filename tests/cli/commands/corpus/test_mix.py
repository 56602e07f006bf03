"""``mens corpus mix``: the table, the JSON report, exit codes, and the example in the docs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app

runner = CliRunner()
EXAMPLES = Path(__file__).parents[4] / "examples"


def example(folder: Path) -> Path:
    (folder / "examples").mkdir()
    for name in ("mix.yaml", "support.jsonl", "tickets.jsonl"):
        shutil.copy(EXAMPLES / name, folder / "examples" / name)
    return folder / "examples" / "mix.yaml"


def test_example_is_mixed_once(tmp_path: Path) -> None:
    file = example(tmp_path)
    result = runner.invoke(app, ["corpus", "mix", str(file)])
    assert result.exit_code == 0
    assert "support.jsonl\t1\t168\t" in result.output
    assert "rows, 10 rows held out for validation." in result.output.replace("\n", " ")
    train = tmp_path / "build" / "mix" / "train.jsonl"
    assert runner.invoke(app, ["data", "check", str(train)]).exit_code == 0
    again = runner.invoke(app, ["corpus", "mix", str(file)])
    assert (again.exit_code, "Nothing has changed" in again.output) == (0, True)
    row = json.loads(train.read_text().splitlines()[0])["id"]
    where = runner.invoke(app, ["corpus", "where", row, "--in", str(tmp_path)])
    assert f"{row} in train: file:" in where.output


def test_json_is_the_report(tmp_path: Path) -> None:
    report = json.loads(runner.invoke(app, ["corpus", "mix", str(example(tmp_path)), "--json"]).output)
    assert report["total_held_out"] == 10
    assert report == json.loads((tmp_path / "build" / "mix" / "train.mix_report.json").read_bytes())


def test_missing_source_ends_with_its_code_unless_allowed(tmp_path: Path) -> None:
    file = example(tmp_path)
    (tmp_path / "examples" / "tickets.jsonl").unlink()
    result = runner.invoke(app, ["corpus", "mix", str(file), "--json"])
    assert (result.exit_code, json.loads(result.output)["error"]["code"]) == (1, "CORPUS_SOURCE_MISSING")
    result = runner.invoke(app, ["corpus", "mix", str(file), "--allow-missing-sources"])
    assert (result.exit_code, "missing_file" in result.output) == (0, True)


def test_root_is_where_paths_start(tmp_path: Path) -> None:
    file = example(tmp_path)
    other = tmp_path / "mixes" / "mix.yaml"
    other.parent.mkdir()
    file.rename(other)
    assert runner.invoke(app, ["corpus", "mix", str(other), "--root", str(tmp_path / "examples")]).exit_code == 0


def test_rows_that_are_not_compared_are_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.datasets.duplicates.MAX_NEAR_ROWS", 4)
    result = runner.invoke(app, ["corpus", "mix", str(example(tmp_path))])
    assert "Note: Near duplicates: each of the" in result.output

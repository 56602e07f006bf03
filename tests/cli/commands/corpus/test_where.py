"""``mens corpus where``: the origin of a row, for people and as JSON; a code for an unknown row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from corpus.provenance import Provenance
from corpus.shards import StageWriter

runner = CliRunner()


@pytest.fixture
def row(tmp_path: Path) -> str:
    """Id of a row of a corpus in the folder."""
    with StageWriter(tmp_path / "pulled", stage="pull", key="6f1c" * 16) as writer:
        writer.write_row({"prompt": "A", "response": "B"}, Provenance(id="", source="file:x", locator={}))
        origin = Provenance(
            id="",
            source="sql:telemetry",
            locator={"key": [8123], "watermark": None},
            stages=["pull@6f1c", "mix@99d0"],
            redactions={"EMAIL": 1},
        )
        return writer.write_row({"prompt": "C", "response": "D"}, origin)


def test_origin_is_shown(tmp_path: Path, row: str) -> None:
    result = runner.invoke(app, ["corpus", "where", row, "--in", str(tmp_path)])
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"{row} in part-00000: sql:telemetry",
        "  locator: key 8123",
        "  stages: pull@6f1c, mix@99d0",
        "  redactions: EMAIL 1",
    ]


def test_json_has_every_field(tmp_path: Path, row: str) -> None:
    result = runner.invoke(app, ["corpus", "where", row, "--in", str(tmp_path / "pulled"), "--json"])
    (record,) = json.loads(result.output)
    assert record["locator"] == {"key": [8123], "watermark": None}
    assert record["file"].endswith("part-00000.sources.jsonl")


def test_unknown_row_has_a_code(tmp_path: Path, row: str) -> None:
    result = runner.invoke(app, ["corpus", "where", row[::-1], "--in", str(tmp_path), "--json"])
    assert (result.exit_code, json.loads(result.output)["error"]["code"]) == (1, "CORPUS_ROW_NOT_FOUND")


def test_file_that_is_not_provenance_has_a_code(tmp_path: Path, row: str) -> None:
    (tmp_path / "bad.sources.jsonl").write_text('{"x":')
    result = runner.invoke(app, ["corpus", "where", row, "--in", str(tmp_path), "--json"])
    assert (result.exit_code, json.loads(result.output)["error"]["code"]) == (1, "CORPUS_SHARD_CHANGED")


def test_names_do_not_control_the_terminal(tmp_path: Path) -> None:
    with StageWriter(tmp_path / "units", stage="extract", key="6f1c" * 16) as writer:
        origin = Provenance(id="", source="code:x\x1b[2J", locator={"path": "e\x1b[31mvil.py"})
        row = writer.write_row({"prompt": "C", "response": "D"}, origin)
    result = runner.invoke(app, ["corpus", "where", row, "--in", str(tmp_path)])
    assert "vil.py" in result.output
    assert "\x1b" not in result.output

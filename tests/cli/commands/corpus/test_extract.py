"""``mens corpus extract``: what was extracted and what was left out, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app

pytestmark = pytest.mark.network

runner = CliRunner()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").write_text("def f(a):\n    return a + 1\n")
    (tmp_path / "project" / "b.py").write_text("def f(:\n")
    return tmp_path / "project"


def test_counts_are_shown(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "units"
    result = runner.invoke(app, ["corpus", "extract", str(project), "--language", "python", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "2 units of 2 files in" in result.output
    assert "left out: not_compiling 1" in result.output
    assert (out / "index.json").exists()


def test_json_is_the_index(project: Path, tmp_path: Path) -> None:
    arguments = ["--language", "python", "--out", str(tmp_path / "units"), "--license", "MIT", "--json"]
    result = runner.invoke(app, ["corpus", "extract", str(project), *arguments])
    assert json.loads(result.output)["report"]["left_out"] == {"not_compiling": 1}


def test_a_language_without_files_has_a_code(project: Path, tmp_path: Path) -> None:
    arguments = ["--language", "sql", "--out", str(tmp_path / "units"), "--json"]
    result = runner.invoke(app, ["corpus", "extract", str(project), *arguments])
    assert (result.exit_code, json.loads(result.output)["error"]["code"]) == (1, "CORPUS_SOURCE_EMPTY")

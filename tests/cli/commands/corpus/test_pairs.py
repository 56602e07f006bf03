"""``mens corpus pairs``: rows of units, and their counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from corpus.units.extraction import Extraction

pytestmark = pytest.mark.network

runner = CliRunner()


@pytest.fixture
def units(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text(
        'def f(a):\n    """Return one more than a number."""\n    b = a + 1\n    return b if b else 0\n'
    )
    Extraction((tmp_path / "a.py",), ("python",)).run(tmp_path / "units", "0" * 64)
    return tmp_path / "units"


def test_counts_are_shown(units: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "pairs")
    result = runner.invoke(app, ["corpus", "pairs", str(units), "--rule", "implement", "--out", out])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("1 row in ")
    assert "1 implement" in result.output


def test_an_unknown_rule_has_a_code(units: Path) -> None:
    result = runner.invoke(app, ["corpus", "pairs", str(units), "--rule", "write", "--json"])
    assert (result.exit_code, json.loads(result.output)["error"]["code"]) == (1, "CORPUS_RULE_UNKNOWN")

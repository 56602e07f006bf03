"""``mens generate-data`` and ``mens corpus generate`` are one command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app

runner = CliRunner()
EXAMPLE = str(Path(__file__).resolve().parents[4] / "examples" / "corpus" / "support.yaml")


@pytest.mark.parametrize("command", [["generate-data"], ["corpus", "generate"]])
def test_rows_are_counted(command: list[str], tmp_path: Path) -> None:
    result = runner.invoke(app, [*command, EXAMPLE, "--rows", "30", "--out", str(tmp_path / "rows")])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("30 rows in ")


def test_a_bad_recipe_has_a_code(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("rows: 1\n")
    result = runner.invoke(app, ["generate-data", str(tmp_path / "recipe.yaml"), "--json"])
    assert (result.exit_code, json.loads(result.output)["error"]["code"]) == (1, "CORPUS_RECIPE_INVALID")

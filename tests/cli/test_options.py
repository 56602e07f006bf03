"""Options that several commands have: a recipe of a corpus is refused as a training file, with the command that makes
one from it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app


@pytest.mark.parametrize("command", [["train"], ["plan"], ["data", "check"]])
@pytest.mark.parametrize(
    ("text", "made_by"),
    [
        ("extract: {paths: [src], language: [python]}\nmix: {output: a.jsonl}\n", "mens corpus build"),
        ("output: a.jsonl\nsources: [{path: b.jsonl}]\n", "mens corpus mix"),
        ("rows: 3\ncolumns: []\n", "mens generate-data"),
    ],
)
def test_recipe_is_refused_with_the_command_to_use(tmp_path: Path, command: list[str], text: str, made_by: str) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(text)
    result = CliRunner().invoke(app, [*command, str(recipe)], terminal_width=400)
    assert result.exit_code == 2
    assert made_by in " ".join(result.output.replace("│", " ").split())  # a long path wraps the box's lines

"""``mens corpus build``: the actions, the output, and the code for an invalid recipe."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from typer.testing import CliRunner

from cli.main import app

runner = CliRunner()
RECIPE = """
pull:
  source: shop.db
  sql: SELECT id, question, answer FROM tickets
  key: id
  row: {prompt: "{{ item.question }}", response: "{{ item.answer }}"}
mix: {output: train.jsonl, holdout: {rows: 5}}
"""


def prepared(folder: Path) -> str:
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("CREATE TABLE tickets (id INTEGER PRIMARY KEY, question TEXT, answer TEXT)")
        rows = [(number, f"Where is order {number}?", f"It is in hall {number}.") for number in range(30)]
        database.executemany("INSERT INTO tickets VALUES (?, ?, ?)", rows)
    (folder / "recipe.yaml").write_text(RECIPE)
    return str(folder / "recipe.yaml")


def test_table_becomes_a_training_file(tmp_path: Path) -> None:
    recipe = prepared(tmp_path)
    dry = runner.invoke(app, ["corpus", "build", recipe, "--dry-run"])
    assert (dry.exit_code, dry.output) == (0, "pull\trun\tnew\nmix\trun\tdepends on earlier stages\n")
    result = runner.invoke(app, ["corpus", "build", recipe])
    assert result.stdout.startswith("pull\trun\tnew\nmix\trun\tnew\n")
    assert "25 rows, 5 rows held out for validation." in result.stdout.replace("\n", " ")
    assert "pulled 30 new rows" in result.stderr
    assert runner.invoke(app, ["data", "check", str(tmp_path / "train.jsonl")]).exit_code == 0
    again = json.loads(runner.invoke(app, ["corpus", "build", recipe, "--json"]).stdout)
    assert again[-1] == {"name": "mix", "runs": False, "reason": "done"}


def test_wrong_recipe_ends_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("mix: {output: a}\n")
    result = runner.invoke(app, ["corpus", "build", str(tmp_path / "recipe.yaml"), "--json"])
    assert (result.exit_code, json.loads(result.output)["error"]["code"]) == (1, "CORPUS_RECIPE_INVALID")

"""``mens generate-data`` and ``mens corpus generate`` are one command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.support.chat_server import chat_server

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


RECIPE = """
rows: 6
columns:
  - {name: n, sampler: sequence}
  - {name: a, method: answer, model: helper, max_tokens: 20}
row: {prompt: "What is {{ item.n }} + 1?", response: "{{ item.a }}"}
"""


def test_requests_are_sent_after_the_plan_was_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, out = tmp_path / "recipe.yaml", str(tmp_path / "rows")
    recipe.write_text(RECIPE)
    command = ["generate-data", str(recipe), "--out", out]
    with chat_server(lambda body: "It is " + body["messages"][0]["content"]) as server:
        # A name of the environment comes before one of the installation; the older name of the variable works too.
        remote = {"helper": {"url": server.url, "key": "sk-of-the-provider", "model": "large"}}
        monkeypatch.setenv("MENS_GRADER_MODELS", json.dumps(remote))
        result = runner.invoke(app, [*command, "--json", "--yes"])
        assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (1, "CORPUS_TERMS_UNSTATED")
        result = runner.invoke(app, [*command, "--accept-terms", "--dry-run"])
        assert (result.exit_code, result.stdout) == (0, "")
        assert f"helper ({server.url}): at most 6 requests; about" in result.stderr
        assert "at most 120 answer tokens" in result.stderr
        result = runner.invoke(app, [*command, "--accept-terms"])
        assert "use --yes" in result.stderr
        assert not server.bodies
        result = runner.invoke(app, [*command, "--accept-terms", "--yes"])
        assert (result.exit_code, result.stdout) == (0, f"6 rows in {out}\n")
        again = runner.invoke(app, [*command, "--accept-terms", "--yes"])
        assert "6 responses are stored" in again.stderr
        assert (again.exit_code, len(server.bodies)) == (0, 6)
        recipe.write_text(RECIPE + "budget: {requests: 8}\nterms: permits_training\n")
        result = runner.invoke(app, [*command, "--rows", "10", "--yes", "--json"])
        assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (1, "CORPUS_BUDGET_SPENT")
        assert len(server.bodies) == 8
    assert "sk-of-the-provider" not in result.output


def test_without_an_installation_the_command_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MENS_API_URL", raising=False)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    result = runner.invoke(app, ["generate-data", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "rows")])
    assert result.exit_code == 1
    assert "MENS_API_URL is not set" in result.stderr

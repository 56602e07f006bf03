"""``mens corpus pull``: the example in the docs, one file with the newest rows, and no password in any output."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.errors import MensError

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "corpus.md").read_text().partition("\n## Tables\n")[2]
runner = CliRunner()
QUERY = "SELECT id, question AS prompt, answer AS response, updated_at FROM tickets"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's table in a folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MENS_CORPUS_KEY", raising=False)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as database:
        database.executescript((ROOT / "examples" / "tickets.sql").read_text())
    return path


def counts(*arguments: str) -> dict[str, Any]:
    result = runner.invoke(app, ["corpus", "pull", "--json", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.output))


def test_example_of_the_page_runs_as_printed(shop: Path) -> None:
    shop.unlink()
    block = re.search(r"```\n(.*?)```", PAGE, re.DOTALL)
    assert block
    make, pull, *output = block[1].splitlines()
    subprocess.run([sys.executable, *shlex.split(make.removeprefix("$ python3 "))], check=True)
    result = runner.invoke(app, shlex.split(pull.removeprefix("$ mens ")))
    assert result.exit_code == 0, result.output
    assert re.sub(r"in \d+\.\d s", "in 0.1 s", result.output).splitlines() == output
    assert "example.org" not in (shop.parent / "tickets.jsonl").read_text()


def test_next_pull_reads_what_is_new(shop: Path) -> None:
    call = ("--source", "shop.db", "--sql", QUERY, "--watermark", "updated_at", "--file", "train.jsonl", "--full")
    assert counts(*call)["rows"] == 40
    with sqlite3.connect(shop) as database:
        database.execute("UPDATE tickets SET answer = 'New.', updated_at = '2026-02-01 00:00:00' WHERE id = 7")
        database.execute("DELETE FROM tickets WHERE id = 8")
    again = counts(*call)
    assert {name: again[name] for name in ("rows", "total", "gone", "file_rows")} == {
        "rows": 1, "total": 41, "gone": 1, "file_rows": 39
    }  # fmt: skip
    answers = [json.loads(line)["response"] for line in Path("train.jsonl").read_bytes().splitlines()]
    assert answers.count("New.") == 1


def test_query_and_templates_can_be_given_in_other_forms(shop: Path) -> None:
    Path("query.sql").write_text("SELECT id, question, answer, rating FROM tickets WHERE rating >= 4;\n")
    rows = ["prompt={{ item.question }}", "response={{ item.answer }}", "rating={{ item.rating }}", "category=support"]
    options = [part for row in rows for part in ("--row", row)]
    assert (
        counts("--source", "shop.db", "--sql", "query.sql", "--redact", "none", "--out", "rows", *options)["rows"] == 35
    )
    first = json.loads(Path("rows/part-00000.jsonl").read_bytes().splitlines()[0])
    assert (first["rating"], first["category"]) == (5, "support")
    assert "+49 30" in first["prompt"]


@pytest.mark.parametrize("variable", ["MENS_CORPUS_SOURCES", "DESK_URL"])
def test_password_is_in_no_output(shop: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    url = "postgresql://ann:hidden-word@127.0.0.1:9/desk"
    monkeypatch.setenv(variable, json.dumps({"desk": url}) if variable == "MENS_CORPUS_SOURCES" else url)
    call = ["corpus", "pull", "--source", "desk", "--sql", QUERY]
    call += [] if variable == "MENS_CORPUS_SOURCES" else ["--url-env", variable]
    result = runner.invoke(app, call)
    assert isinstance(result.exception, MensError)
    assert result.exception.code == "CORPUS_SOURCE_UNREACHABLE"
    assert "hidden-word" not in result.output + str(result.exception) + repr(result.exception.__cause__)
    monkeypatch.setenv(
        variable,
        '{"desk": ["postgresql://ann:hidden-word@x/y"]}' if variable == "MENS_CORPUS_SOURCES" else "hidden-word",
    )
    result = runner.invoke(app, call)
    assert isinstance(result.exception, MensError)
    assert result.exception.code == "SETTINGS_INVALID"
    assert "hidden-word" not in result.output + str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--source", "desk", "--sql", "SELECT 1"], "CORPUS_SOURCE_UNKNOWN", "MENS_CORPUS_SOURCES"),
        (["--source", "desk", "--sql", "SELECT 1", "--url-env", "ABSENT_URL"], "CORPUS_SOURCE_UNKNOWN", "export ABSENT_URL"),
        (["--source", "shop.db"], "CORPUS_QUERY_INVALID", "--sql"),
        (["--source", "shop.db", "--sql", "absent.sql"], "CORPUS_QUERY_INVALID", "absent.sql"),
        (["--source", "shop.db", "--sql", QUERY, "--row", "prompt"], "CORPUS_RECIPE_INVALID", "KEY=TEMPLATE"),
    ],
)  # fmt: skip
def test_wrong_call_says_what_to_do(shop: Path, arguments: list[str], code: str, word: str) -> None:
    result = runner.invoke(app, ["corpus", "pull", *arguments])
    assert isinstance(result.exception, MensError)
    assert result.exception.code == code
    assert word in str(result.exception)

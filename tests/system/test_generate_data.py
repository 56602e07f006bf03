"""``mens generate-data`` with a model that the installation serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.system.loop import Installation

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]


def test_a_tuned_model_answers_and_is_queried_once(
    installation: Installation, home: Path, assistant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_HOME", str(home))
    monkeypatch.setenv("MENS_API_URL", installation.connection.url)
    monkeypatch.setenv("MENS_API_KEY", installation.connection.key)
    learnt = [json.loads(line) for line in Path(__file__).with_name("assistant.jsonl").read_text().splitlines()]
    rows = [row["messages"] for row in learnt if len(row["messages"]) == 2 and row["messages"][-1]["content"]]
    answers = {question["content"]: answer["content"] for question, answer in rows}
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps({"q": question}) + "\n" for question in answers))
    columns = [
        {"name": "seed", "sampler": "rows", "file": "questions.jsonl"},
        {
            "name": "a",
            "method": "answer",
            "model": assistant,
            "prompt": "{{ item.seed.q }}",
            "max_tokens": 96,
            "temperature": 0,
        },
    ]
    recipe = {"rows": 12, "columns": columns, "row": {"prompt": "{{ item.seed.q }}", "response": "{{ item.a }}"}}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    out = tmp_path / "rows"
    command = ["generate-data", str(tmp_path / "recipe.yaml"), "--out", str(out), "--yes", "--json"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    made = [json.loads(line) for line in (out / "part-00000.jsonl").read_bytes().splitlines()]
    assert made
    assert sum(answers[row["prompt"]] == row["response"] for row in made) > len(made) / 2, "it has learnt these answers"
    generator = json.loads((out / "part-00000.sources.jsonl").read_bytes().splitlines()[0])["generator"]["a"]
    assert generator["endpoint"] == "installation"
    assert generator["revision"].startswith(f"{assistant}@"), "the version that the alias led to"
    responses = (out / "responses" / "responses-00000.jsonl").read_bytes()
    again = CliRunner().invoke(app, command)
    assert again.stdout == first.stdout
    assert (out / "responses" / "responses-00000.jsonl").read_bytes() == responses
    assert installation.connection.key.encode() not in responses

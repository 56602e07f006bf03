"""``mens eval run`` as its users run it: real models, a real worker, two models on the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.system.loop import BASE, Installation

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]


def test_tuned_model_and_its_base_on_what_it_learnt(
    installation: Installation, home: Path, assistant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_HOME", str(home))
    monkeypatch.setenv("MENS_API_URL", installation.connection.url)
    monkeypatch.setenv("MENS_API_KEY", installation.connection.key)
    learnt = [json.loads(line) for line in Path(__file__).with_name("assistant.jsonl").read_text().splitlines()]
    rows = [row for row in learnt if len(row["messages"]) == 2 and row["messages"][-1]["content"]]
    file = tmp_path / "learnt.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [
        "eval",
        "run",
        str(file),
        "--model",
        assistant,
        "--against",
        BASE,
        "--max-tokens",
        "96",
        "--yes",
        "--json",
    ]
    result = CliRunner().invoke(app, arguments)
    found = json.loads(result.stdout)["comparisons"]["exact"]
    assert found["items"] == len(rows) > 2
    assert found["new"] > 0.5, "it has learnt these answers"
    assert found["old"] == 0.0, "an untuned base knows none of them"
    assert result.exit_code == (0 if found["status"] == "passed" else 1)
    run_id = next(line for line in result.stderr.splitlines() if line.startswith("run ")).removeprefix("run ")
    page = CliRunner().invoke(app, ["eval", "show", run_id])
    assert f"new: {assistant}, old: {BASE}" in page.output
    exported = CliRunner().invoke(app, ["eval", "export", run_id])
    lines = [json.loads(line) for line in exported.stdout.splitlines()]
    assert sum(line["scores"]["exact"] for line in lines) / len(lines) == pytest.approx(found["new"])
    assert [line["item"]["expected"] for line in lines] == [row["messages"][-1]["content"] for row in rows]

"""A policy on an alias, from the command line, with real training and real answers: a better adapter takes the alias
over, a worse one cannot.

`make test` tests the parts: the judging of a job in tests/worker/jobs/test_judge.py, and every operation that moves a
name in tests/api/routes/gates.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.sandbox.levels import LEVELS
from shared.sandbox.probe import missing
from tests.system.loop import BASE, ROOT, Installation

pytestmark = [pytest.mark.long, pytest.mark.network, pytest.mark.timeout(600)]

ALIAS, ITEMS = "desk", 60
LEARN = [
    "--batch-size",
    "8",
    "--grad-accum",
    "1",
    "--learning-rate",
    "4e-3",
    "--seq-len",
    "128",
    "--checkpoint-every",
    "1000",
]
EPOCHS, FEW_EPOCHS = "12", "2"
EQUALS = {
    "type": "string_check", "name": "equals", "operation": "eq",
    "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}",
}  # fmt: skip
CODE = {
    "type": "python",
    "name": "code",
    "source": "def grade(sample, item):\n    return float(sample['output_text'].strip() == item['answer'])",
    "pass_threshold": 1,
}
CONTAINED = not all(map(missing, LEVELS))
POLICY = """\
version: "1"
runs:
  support:
    eval: {eval}
    file: {file}
    messages: [{{role: user, content: "{{{{ item.question }}}}"}}]
    max_completion_tokens: 48
gates:
  supervised_ratio: {{min_pct: 1}}
  truncation: {{max_fraction: 0.05}}
  throughput: {{min_tokens_per_sec: {{cpu: 1.0e+9}}}}
  evals:
    quality: {{run: support, criterion: equals, max_loss: 0.1}}
"""


@dataclass
class Desk:
    """An alias that a policy governs.

    Attributes:
        incumbent: adapter that answered for it before anything was governed: trained on wrong answers.
        wrong: training file whose answers are other questions'.
    """

    installation: Installation
    incumbent: str
    wrong: Path

    def mens(self, *arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result.output

    def train(self, file: Path, *options: str, code: int = 0) -> tuple[dict[str, Any], str]:
        """A finished job that was to move the alias, and what the command said."""
        said = self.mens("train", str(file), "--model", BASE, *LEARN, *options, code=code)
        print(said)
        newest = self.installation.call("GET", "/v1/jobs?limit=1&kind=finetune")["data"][0]
        return self.installation.job(newest["id"]), said

    def state(self) -> dict[str, Any]:
        return dict(self.installation.call("GET", f"/v1/aliases/{ALIAS}"))

    def refused(self, body: dict[str, Any]) -> dict[str, Any]:
        """The error of a move of the alias."""
        with self.installation.connection.client() as client:
            response = client.put(f"/v1/aliases/{ALIAS}", json=body)
        assert response.status_code == 409, response.text
        return dict(response.json()["error"])


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "examples" / name).read_text().splitlines()]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def shuffled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with other questions' answers."""
    answers = sorted({row["messages"][-1]["content"] for row in rows})
    other = dict(zip(answers, [*answers[1:], answers[0]], strict=True))
    return [
        {"messages": [*row["messages"][:-1], {"role": "assistant", "content": other[row["messages"][-1]["content"]]}]}
        for row in rows
    ]


@pytest.fixture
def desk(installation: Installation, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("MENS_HOME", str(home))
    monkeypatch.setenv("MENS_API_URL", installation.connection.url)
    monkeypatch.setenv("MENS_API_KEY", installation.connection.key)
    rows = rows_of("support.jsonl")
    found = Desk(installation, "", write(tmp_path / "wrong.jsonl", shuffled(rows)))
    job, said = found.train(found.wrong, "--alias", ALIAS, "--epochs", FEW_EPOCHS)
    assert "governed" not in said
    assert "receipt" not in job["result"]
    found.incumbent = job["result"]["adapter_id"]

    asked = random.Random(5).sample(rows, ITEMS)
    items = [
        {"item": {"question": row["messages"][0]["content"], "answer": row["messages"][1]["content"]}} for row in asked
    ]
    files = {"file": ("asked.jsonl", write(tmp_path / "asked.jsonl", items).read_bytes())}
    file = installation.call("POST", "/v1/files", data={"purpose": "evals"}, files=files)
    schema = {"type": "object", "properties": {"question": {"type": "string"}, "answer": {"type": "string"}}}
    config = {"type": "custom", "item_schema": schema, "include_sample_schema": True}
    body = {"name": "Support", "data_source_config": config, "testing_criteria": [EQUALS] + [CODE] * CONTAINED}
    judged = installation.call("POST", "/v1/evals", json=body)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(eval=judged["id"], file=file["id"]))
    found.mens("policies", "put", "desk", str(policy))
    found.mens("policies", "assign", f"alias:{ALIAS}", "desk")
    return found


def test_better_adapter_takes_the_alias_in_one_call_and_worse_one_by_no_way(desk: Desk) -> None:
    better, said = desk.train(ROOT / "examples" / "support.jsonl", "--alias", ALIAS, "--epochs", EPOCHS)
    good = better["result"]["adapter_id"]
    check_that_it_took_the_alias(desk, better, said)

    job, said = desk.train(desk.wrong, "--alias", ALIAS, "--epochs", FEW_EPOCHS, "--seed", "7", code=3)
    worse = job["result"]["adapter_id"]
    check_that_it_did_not(desk, job, said, good)

    error = desk.refused({"adapter": worse})
    assert error["mens"]["code"] == "GATE_FAILED"
    assert {row["name"] for row in error["mens"]["details"]["gates"]} == {"evals.quality", "throughput"}
    split = [{"adapter": good, "weight": 99}, {"adapter": worse, "weight": 1}]
    assert desk.refused({"targets": split})["mens"]["code"] == "GATE_FAILED"
    refused = desk.mens("aliases", "set", ALIAS, worse, code=1)
    assert "error: GATE_FAILED" in refused
    assert "evals.quality failed" in refused
    assert [target["adapter"] for target in desk.state()["targets"]] == [good], "nothing has moved"

    desk.mens("aliases", "set", ALIAS, worse, "--override", code=1)  # an override needs a reason
    desk.mens("aliases", "set", ALIAS, worse, "--override", "--reason", "the old one is in danger")
    assert desk.state()["adapter_id"] == worse
    desk.mens("aliases", "rollback", ALIAS)
    assert desk.state()["adapter_id"] == good
    moves = desk.installation.call("GET", f"/v1/aliases/{ALIAS}/history")["data"]
    assert [move["verb"] for move in moves[:2]] == ["rollback", "set"], moves[:2]
    assert (moves[1]["gate"]["override"], moves[1]["reason"]) == (True, "the old one is in danger")
    assert moves[2]["gate"] == {
        "policy": moves[1]["gate"]["policy"],
        "receipts": [better["result"]["receipt"]["id"]],
        "override": False,
    }
    # Judged again it is the same, now by itself: the alias has gone back to the better one.
    assert "  failed: " in desk.mens("receipts", "create", worse, "--alias", ALIAS, code=1)


def check_that_it_took_the_alias(desk: Desk, job: dict[str, Any], said: str) -> None:
    adapter, receipt_id = job["result"]["adapter_id"], job["result"]["receipt"]["id"]
    assert f"note: The alias {ALIAS} is governed by the policy desk" in said
    assert f"compared with {desk.incumbent}" in said
    assert desk.state()["adapter_id"] == adapter
    receipt = desk.installation.call("GET", f"/v1/receipts/{receipt_id}")["receipt"]
    rows = {row["name"]: row for row in receipt["gates"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "supervised_ratio": "passed",
        "truncation": "passed",
        "throughput": "failed",  # nothing is that fast; it only warns
        "evals.quality": "passed",
    }
    assert (rows["evals.quality"]["n"], rows["evals.quality"]["value"] > 0.5) == (ITEMS, True)
    assert receipt["incumbent"]["id"] == receipt["compared_with"] == desk.incumbent
    assert (receipt["sandbox"] in LEVELS) == CONTAINED
    assert f"receipt  {receipt_id}: passed" in said
    assert f"alias    {ALIAS} points to it" in said


def check_that_it_did_not(desk: Desk, job: dict[str, Any], said: str, good: str) -> None:
    adapter, result = job["result"]["adapter_id"], job["result"]
    assert (job["state"], result["receipt"]["passed"], result["alias"]["moved"]) == ("succeeded", False, False)
    assert desk.state()["adapter_id"] == good
    [registered] = desk.installation.adapters_of(job)
    assert registered["state"] == "published"
    assert desk.installation.ask(adapter), "who names it is answered"
    messages = [event["message"] for event in job["events"]]
    assert any(message.startswith("evals.quality failed: mean score went from ") for message in messages)
    assert messages[-1].endswith(f"The alias {ALIAS} stays at {good}: GATE_FAILED.")
    assert f"receipt  {result['receipt']['id']}: failed" in said
    assert "  evals.quality  failed: mean score went from " in said
    assert f"alias    {ALIAS} was not moved: GATE_FAILED." in said
    assert "  failed: " in desk.mens("receipts", "show", result["receipt"]["id"])
    assert "failed (evals.quality)" in desk.mens("models", "show", adapter)

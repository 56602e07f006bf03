"""A tuned model moves from OpenAI, with all its quirks, to an installation; its program changes only base URL and key.

`make test` tests each command separately: tests/openai_migration/commands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from openai_migration.receipts import receipt_file
from tests.support.fake_openai import (
    KEY,
    OTHER_KEY,
    TUNED,
    FakeOpenAI,
    Object,
    job,
    serve_fake_openai,
)
from tests.system.loop import ANSWER, BASE, QUESTION, ROOT, Installation

pytestmark = [pytest.mark.long, pytest.mark.network, pytest.mark.timeout(300)]

ROWS = (ROOT / "examples" / "support.jsonl").read_bytes()
PROMPTS = (ROOT / "examples" / "support.validation.jsonl").read_bytes()
GPT = "gpt-4o-mini-2024-07-18"
SHORT = ["--max-answer-tokens", "64"]
"""The tiny base has not the context for more."""
PROGRAM = f"""
from openai import OpenAI

client = OpenAI()
ask = dict(model="{TUNED}", messages=[{{"role": "user", "content": "{QUESTION}"}}], max_tokens=48, temperature=0)
answer = client.chat.completions.create(**ask)
print(answer.model)
print(answer.choices[0].message.content)
"""


def answers(content: bytes) -> dict[str, str]:
    """The answer to each question of a file."""
    rows = (json.loads(line)["messages"] for line in content.splitlines())
    return {row[-2]["content"]: row[-1]["content"] for row in rows}


@pytest.fixture
def fake() -> FakeOpenAI:
    """An OpenAI that has tuned a model on the support answers, and has all its quirks."""
    fake, known = FakeOpenAI(), answers(ROWS) | answers(PROMPTS)

    def complete(request: Object) -> str:
        question = request["messages"][-1]["content"]
        return known.get(question, "I do not know.") if request["model"].startswith("ft:") else "As a language model …"

    fake.complete = complete
    first = fake.projects[KEY]
    hyperparameters = {"n_epochs": 10, "batch_size": 8, "learning_rate_multiplier": 1.8}
    method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    first.lists["fine_tuning/jobs"][0] |= {"method": method, "seed": None}  # `error` is {} already
    first.lists["files"][0]["bytes"] = len(ROWS)
    first.lists["fine_tuning/jobs"] += [job(f"ftjob-{number}", None, status="cancelled") for number in range(3)]
    first.contents["file-valid"] = PROMPTS
    fake.forbidden_files = {"file-train"}
    fake.deleted_meanwhile = {"fine_tuning/jobs/ftjob-new/events"}
    fake.empty_last_page = {"batches", "fine_tuning/jobs"}
    fake.limited, fake.retry_after = {"files": 1, "chat/completions": 1}, "0"
    fake.evals_end = 410
    return fake


@pytest.fixture
def openai_url(fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Base URL of the fake; two projects' keys are in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_KEY_OTHER", OTHER_KEY)
    with serve_fake_openai(fake) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        yield url


def mens(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["migrate", "openai", *arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.output


def run_program(base_url: str, key: str) -> list[str]:
    """Return the output of the team's program, which gets only a base URL and a key."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_tuned_model_moves_and_its_program_changes_base_url_and_key_alone(
    installation: Installation, fake: FakeOpenAI, openai_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    archive, originals = "archive", tmp_path / "originals"  # by a relative path, as the guide names it
    originals.mkdir()
    (originals / "train.jsonl").write_bytes(ROWS)
    before = run_program(openai_url, KEY)
    assert before[0] == TUNED
    assert ANSWER in before[1]

    keys = ["--key-env", "OPENAI_API_KEY", "--key-env", "OPENAI_KEY_OTHER"]
    exported = mens("export", archive, *keys)
    assert "refused: files/file-train/content: 403" in exported
    assert "refused: evals: 410" in exported
    recorded = mens("record", archive, "--model", TUNED, "--yes", "--trained", str(originals / "train.jsonl"), *SHORT)
    assert "23 prompts with answers" in recorded
    assert "left out: 2 nearly trained on" in recorded

    # From here on without OpenAI.
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.delenv("OPENAI_API_KEY")
    fake.requests.clear()
    monkeypatch.setenv("MENS_API_URL", installation.connection.url)
    monkeypatch.setenv("MENS_API_KEY", installation.connection.key)
    assert "168 lines: 168 kept" in mens("convert", archive, "--original", str(originals))
    assert "exec.epochs = 10 (OpenAI: 10)" in mens("plan", archive, "--model", TUNED, "--bases", BASE)
    assert "succeeded" in mens("train", archive)
    assert "GATE_NOT_PASSED" in mens("switch", archive, "--model", TUNED, code=1)
    mens("gate", archive, "--model", TUNED, "--margin", "0.6")  # a tiny base, and few prompts
    assert json.loads(Path(archive, receipt_file(TUNED)).read_text())["verdict"] == "passed"
    assert f"OPENAI_BASE_URL={installation.connection.url}/v1" in mens("switch", archive, "--model", TUNED)
    assert "done: export, record, convert, train, gate, switch" in mens("report", archive)
    assert not fake.requests

    stream = installation.openai().chat.completions.create(
        model=TUNED, messages=[{"role": "user", "content": QUESTION}], max_tokens=48, temperature=0, stream=True
    )
    parts = list(stream)
    assert {part.model for part in parts} == {TUNED}
    assert ANSWER in "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    after = run_program(f"{installation.connection.url}/v1", installation.connection.key)
    assert after[0] == TUNED
    assert ANSWER in after[1]
    listed = [model["id"] for model in installation.call("GET", "/v1/models")["data"]]
    assert TUNED in listed

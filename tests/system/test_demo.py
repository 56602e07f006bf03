"""`mens demo`, as `make demo` runs it: it must succeed, and leave no process behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from tests.system.loop import Installation, mens, processes_of


def test_tiny_demo_succeeds_and_leaves_no_process(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bases").symlink_to(home / "bases")
    done = mens("demo", "--tiny", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "adapter support@" in done.stdout
    assert "I do not know that yet" in done.stdout
    # One that was killed may take a moment to end.
    eventually(lambda: not processes_of(tmp_path), 20, "no process is left")


@pytest.mark.long  # an installation that fails to start; what is said then: tests/cli/standalone/test_stack.py
def test_failed_demo_shows_the_cause(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bases").symlink_to(home / "bases")
    os.environ["MENS_SERVING_MAX_LORAS"] = "0"
    try:
        done = mens("demo", "--tiny", home=tmp_path)
    finally:
        del os.environ["MENS_SERVING_MAX_LORAS"]
    assert done.returncode == 1
    assert "serving (mens-tiny) has ended: SETTINGS_INVALID: MENS_SERVING_MAX_LORAS" in done.stderr
    assert "logs/serving.log" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["models"], "mens-tiny"),
        (["chat", "mens-tiny", "Where is the truth about a job kept?"], "I do not know that yet"),
        (["plan", "examples/support.jsonl", "--model", "mens-tiny"], "optimizer steps"),
        (["data", "check", "examples/support.jsonl", "--model", "mens-tiny"], "168"),
    ],
)
def test_commands_against_a_running_installation(
    installation: Installation, arguments: list[str], expected: str
) -> None:
    done = mens(*arguments, home=installation.stack.home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert expected in done.stdout


@pytest.mark.long  # `mens demo` does the same by the same code
def test_commands_printed_by_up_tune_the_tiny_model(installation: Installation) -> None:
    train = ["train", "examples/support.jsonl", "--model", "mens-tiny", "--alias", "pasted"]
    done = mens(*train, home=installation.stack.home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "learning rate 0.004" in done.stdout
    assert "succeeded" in done.stdout
    assert "finetune\t" in mens("jobs", "list", home=installation.stack.home).stdout
    answer = mens("chat", "pasted", "How do I start a training job?", home=installation.stack.home)
    assert "POST /v1/jobs" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--rank", "64"], "NOT_SERVABLE_RANK"),
        (["--seq-len", "100000"], "SEQ_LEN_TOO_LARGE"),
        (["--preset", "nope"], "UNKNOWN_PRESET"),
    ],
)
def test_unservable_job_is_refused_at_submission(installation: Installation, arguments: list[str], code: str) -> None:
    before = len(installation.call("GET", "/v1/jobs", params={"limit": 100})["data"])
    train = ["train", "examples/support.jsonl", "--model", "mens-tiny", *arguments]
    done = mens(*train, home=installation.stack.home)
    assert (done.returncode, code in done.stderr) == (1, True), done.stderr
    assert len(installation.call("GET", "/v1/jobs", params={"limit": 100})["data"]) == before


def test_second_instance_in_one_home_is_refused(installation: Installation) -> None:
    done = mens("up", home=installation.stack.home)
    assert done.returncode == 1
    assert "already running" in done.stderr

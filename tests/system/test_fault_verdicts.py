"""The verdicts of the fault trials, and their rows in docs/faults.md; the full disk."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.system.fault_trials.faults import CannotTry, full, movable_clock, set_clock, small_disk
from tests.system.fault_trials.trials import TRIALS
from tests.system.fault_trials.verdicts import Verdict, count_outcomes, job_faults, table
from tests.system.fault_trials.witness import Witness
from tests.system.loop import ROOT


def job(
    state: str = "succeeded", code: str | None = None, *errors: tuple[str, str], attempt: int = 1
) -> dict[str, Any]:
    """A job whose attempts ended with errors."""
    events = [{"message": message, "data": {"error": {"code": code, "message": message}}} for code, message in errors]
    events += [{"message": "Job succeeded: x", "data": {}}] * (state == "succeeded")
    error = {"code": code, "message": ""} if code else None
    return {"kind": "finetune", "state": state, "error": error, "attempt": attempt, "events": events}


@pytest.mark.parametrize(
    ("ended", "results", "refusals"),
    [
        (job(), 1, ()),
        (job("succeeded", None, ("STORAGE_FULL", "The disk is full."), attempt=2), 1, ()),
        (job("failed", "TEMPLATE_UNSUPPORTED"), 0, ("TEMPLATE_UNSUPPORTED",)),
    ],
)
def test_job_that_ended_as_it_should_is_not_bad(ended: dict[str, Any], results: int, refusals: tuple[str, ...]) -> None:
    assert job_faults(ended, results, refusals) == []


@pytest.mark.parametrize(
    ("ended", "results", "refusals", "bad"),
    [
        (job("running"), 0, (), "lost"),
        (job("failed", "ATTEMPTS_EXHAUSTED"), 0, (), "ATTEMPTS_EXHAUSTED"),
        (job(), 2, (), "done 2 times"),
        (job() | {"events": job()["events"] * 2}, 1, (), "done 2 times"),
        (job("succeeded", None, ("TRAINER_CRASHED", "Errno 30")), 1, (), "TRAINER_CRASHED"),
        (job("succeeded", None, ("STORAGE_FULL", "/tmp/x is full")), 1, (), "discloses details of the server"),
        (job(), 1, ("TEMPLATE_UNSUPPORTED",), "not refused"),
        (job("failed", "TEMPLATE_UNSUPPORTED", attempt=3), 0, ("TEMPLATE_UNSUPPORTED",), "attempt 3"),
    ],
)
def test_bad_end_of_a_job_is_named(ended: dict[str, Any], results: int, refusals: tuple[str, ...], bad: str) -> None:
    (found,) = job_faults(ended, results, refusals)
    assert bad in found


@pytest.mark.parametrize(
    ("status", "body", "bad"),
    [
        (503, {"error": {"code": "STORAGE_FULL", "message": "The disk is full."}}, False),
        (200, {"worker_faults": [{"code": "STORAGE_FULL"}]}, False),
        (500, {"error": {"code": "INTERNAL_ERROR", "message": "Unexpected."}}, True),
        (502, {}, True),
        (404, {"error": {"code": "JOB_NOT_FOUND", "message": "There is no such job."}}, True),
        (503, {"error": {"code": "STORAGE_FULL", "message": "/tmp/home is full."}}, True),
    ],
)
def test_answer_that_nobody_should_get_is_bad(status: int, body: dict[str, Any], bad: bool) -> None:
    witness = Witness(installation=None)  # it sends no request
    witness.note("upload", status, json.dumps(body))
    assert bool(witness.wrong) == bad
    assert witness.answers["upload"].total() == 1
    assert "STORAGE_FULL" in witness.codes or bad


def test_row_reports_the_outcome() -> None:
    verdict = Verdict("runs-full", "The disk is full", recovery_seconds=2.4, attempts=[1, 2])
    verdict.jobs = count_outcomes([job(), job("failed", "TEMPLATE_UNSUPPORTED")])
    verdict.answers = {"chat": {"200": 7}, "upload": {"200": 1, "503 `STORAGE_FULL`": 4}}
    row = table([verdict]).splitlines()[2]
    assert row == (
        "| The disk is full | 1 job succeeded, 1 job refused with `TEMPLATE_UNSUPPORTED` in attempt 2; work continued 2 s after the end;"
        " upload: 503 `STORAGE_FULL` | trial `runs-full` |"
    )
    verdict.bad.append("users do not see STORAGE_FULL")
    assert not verdict.passed
    assert "**Bad:** users do not see" in verdict.as_row()


def test_page_has_a_row_of_each_trial_in_its_order() -> None:
    """The page has the rows of one run, which `python -m tests.system.fault_trials` prints."""
    page = (ROOT / "docs" / "faults.md").read_text()
    rows = re.findall(r"^\| (.+?) \| .+ \| trial `([\w-]+)` \|$", page, re.MULTILINE)
    assert rows == [(trial.fault, name) for name, trial in TRIALS.items()]
    assert "**Bad:**" not in page


def test_clock_of_a_program_is_moved_and_its_monotonic_clock_is_not(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    try:
        environment = movable_clock(clock)
    except CannotTry as error:
        pytest.skip(f"the clock of a program cannot be moved: {error}")
    set_clock(clock, -3600)
    program = "import time; time.sleep(0.01); print(time.time(), time.monotonic())"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    moved, monotonic = map(float, done.stdout.split())
    assert abs(time.time() - 3600 - moved) < 60
    assert 0 <= time.monotonic() - monotonic < 60


def test_disk_is_full_before_anything_is_done_on_it(tmp_path: Path) -> None:
    """Else a worker may begin a job on it, which costs an attempt."""
    try:
        with small_disk(tmp_path), full(tmp_path):
            assert os.statvfs(tmp_path).f_bavail == 0
    except CannotTry as error:
        pytest.skip(f"this test may not mount: {error}")

"""Jobs as rows of a table."""

from __future__ import annotations

from typing import Any

import pytest

from cli.client.job_table import COLUMNS, describe_origin, job_rows

JOB: dict[str, Any] = {
    "id": "ftjob-1",
    "kind": "finetune",
    "state": "queued",
    "stage": None,
    "base_model": "tiny",
    "alias": "prod",
    "alias_moved": None,
    "step": None,
    "total_steps": None,
    "train_loss": None,
    "eta_seconds": None,
    "adapter_id": None,
    "model_digest": None,
    "error": None,
    "tenant": "shared",
    "created_at": "2026-01-02T03:04:05Z",
    "created_by": "alice",
    "started_at": None,
    "finished_at": None,
}
ENDED = {"started_at": "2026-01-02T03:05:05Z", "finished_at": "2026-01-02T03:12:06Z"}


def shown(**changes: Any) -> dict[str, str]:
    """A job's row, by column."""
    [row] = job_rows([JOB | changes])
    return dict(zip(COLUMNS, row, strict=True))


def test_row_says_when_for_which_alias_and_by_whom() -> None:
    row = shown()
    assert (row["created (UTC)"], row["alias"], row["base"], row["by"]) == ("2026-01-02 03:04", "prod", "tiny", "alice")
    assert (row["state"], row["time"], row["result"]) == ("queued", "", "")


@pytest.mark.parametrize(
    ("changes", "state", "time", "result"),
    [
        (ENDED | {"state": "succeeded", "adapter_id": "a@1"}, "succeeded", "7 min", "a@1"),
        (ENDED | {"state": "succeeded", "model_digest": "1" * 64}, "succeeded", "7 min", "1" * 64),
        (ENDED | {"state": "failed", "error": {"code": "X"}}, "failed", "7 min", "X"),
        ({"state": "paused", "started_at": ENDED["started_at"]}, "paused", "", ""),
    ],
)
def test_row_of_a_job_that_has_ended(changes: dict[str, Any], state: str, time: str, result: str) -> None:
    row = shown(**changes)
    assert (row["state"], row["time"], row["result"]) == (state, time, result)


def test_running_job_shows_its_stage_and_the_time_until_now() -> None:
    row = shown(state="running", stage="train", started_at="2026-01-02T03:05:05Z")
    assert row["state"] == "running: train"
    assert row["time"].endswith(" h")


def test_alias_that_stayed_is_said_to_have_stayed() -> None:
    assert shown(**ENDED, state="succeeded", alias_moved=False)["alias"] == "prod (not moved)"
    assert shown(**ENDED, state="succeeded", alias_moved=True)["alias"] == "prod"
    assert shown(alias=None, created_by=None)["alias"] == ""


def test_progress_is_that_of_the_summary() -> None:
    progress = {"step": 3, "total_steps": 90, "train_loss": 0.5, "eta_seconds": 62.0}
    assert shown(**progress, state="running")["progress"] == "3/90  loss 0.500  stage ends in 1:02"
    assert shown(**progress, state="paused")["progress"] == "3/90  loss 0.500"
    assert shown(step=1, total_steps=2)["progress"] == "1/2"
    assert shown(step=0, total_steps=None)["progress"] == ""


def test_origin_in_one_line() -> None:
    whole = JOB | {"contract": {"artifact": {"alias": "prod"}}, "result": {}}
    assert describe_origin(whole) == "2026-01-02 03:04 UTC by alice for the alias prod"
    kept = {"contract": {"alias": "other"}, "result": {"alias": {"name": "other", "moved": False}}}
    earlier = whole | ENDED | {"state": "succeeded", "created_by": None} | kept
    assert describe_origin(earlier) == "2026-01-02 03:04 UTC for the alias other (not moved), ran 7 min"
    assert describe_origin(whole | {"created_by": None, "contract": {}}) == "2026-01-02 03:04 UTC"

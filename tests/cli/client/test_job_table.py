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
    "contract": {"artifact": {"alias": "prod"}},
    "progress": {},
    "result": {},
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
        (ENDED | {"state": "succeeded", "result": {"adapter_id": "a@1"}}, "succeeded", "7 min", "a@1"),
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
    kept = {"alias": {"name": "prod", "moved": False}}
    assert shown(**ENDED, state="succeeded", result=kept)["alias"] == "prod (not moved)"
    assert shown(contract={"alias": "other"})["alias"] == "other"
    assert shown(contract={"adapter": "a@1"}, created_by=None)["alias"] == ""


def test_origin_in_one_line() -> None:
    assert describe_origin(JOB) == "2026-01-02 03:04 UTC by alice for the alias prod"
    earlier = JOB | ENDED | {"state": "failed", "created_by": None, "contract": {}}
    assert describe_origin(earlier) == "2026-01-02 03:04 UTC, ran 7 min"

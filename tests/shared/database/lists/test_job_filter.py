"""Filters of a list of jobs, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shared.database.audit.actors import AuditActor, acting
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.lists.job_filter import JobFilter
from shared.database.records import Job, Kind
from tests.support.builders import submission
from tests.support.clock import Clock


def submit(jobs: Jobs, count: int = 1, **changes: Any) -> list[Job]:
    return [jobs.submit(submission(**changes))[0] for _ in range(count)]


def of(jobs: Jobs, **which: Any) -> list[Job]:
    """The jobs that a filter admits, newest first."""
    return list(jobs.list(JobFilter(**which)))


def names(jobs: Jobs, **which: Any) -> list[str]:
    """Sorted names of these jobs."""
    return sorted(job.name for job in of(jobs, **which))


def test_list_by_state_and_base(jobs: Jobs) -> None:
    submit(jobs, name="one")
    [other] = submit(jobs, name="two", base_model="large")
    jobs.cancel(other.id)
    assert names(jobs, states=[JobState.QUEUED]) == ["one"]
    assert names(jobs, states=[JobState.QUEUED, JobState.CANCELLED]) == ["one", "two"]
    assert names(jobs, base_model="large") == ["two"]


def test_list_by_alias_of_a_training_or_an_import(jobs: Jobs) -> None:
    submit(jobs, name="trained", contract={"artifact": {"alias": "prod"}})
    submit(jobs, name="imported", kind=Kind.IMPORT, contract={"alias": "prod"})
    submit(jobs, name="other", contract={"artifact": {"alias": "product"}})
    submit(jobs, name="none", contract={"artifact": {"alias": None}})
    assert names(jobs, alias="prod") == ["imported", "trained"]


def test_job_names_the_key_that_submitted_it(jobs: Jobs) -> None:
    submit(jobs, name="by itself")
    with acting(AuditActor("key", "key-a", "alice", key_name="alice")):
        submit(jobs, name="asked for")
    [job] = of(jobs, created_by="alice")
    assert (job.name, job.created_by) == ("asked for", "alice")
    assert [job.created_by for job in of(jobs)] == ["alice", None]


def test_list_by_time_of_creation(jobs: Jobs, clock: Clock) -> None:
    made = []
    for number in range(3):
        made += submit(jobs, name=str(number))
        clock.now += timedelta(minutes=1)
    second = made[1].created_at
    assert names(jobs, created_after=second) == ["1", "2"]
    assert names(jobs, created_before=second) == ["0"]
    assert names(jobs, created_after=second, created_before=second + timedelta(seconds=1)) == ["1"]
    assert names(jobs, created_after=datetime(2100, 1, 1, tzinfo=UTC)) == []


def test_list_by_text(jobs: Jobs) -> None:
    [invoice] = submit(jobs, name="invoice-v2", base_model="qwen3")
    submit(jobs, name="100%_sure", base_model="llama")
    assert names(jobs, text="VOICE") == ["invoice-v2"]
    assert names(jobs, text="lam") == ["100%_sure"]
    assert names(jobs, text="0%_s") == ["100%_sure"], "they are no wildcards"
    assert names(jobs, text=invoice.id[-6:]) == names(jobs, text=invoice.id) == ["invoice-v2"]
    assert names(jobs, text=invoice.id[10:-2]) == [], "a part in the middle says nothing"


def test_list_by_kind(jobs: Jobs) -> None:
    submit(jobs, 2)
    [merge] = submit(jobs, kind=Kind.MERGE)
    assert [job.id for job in of(jobs, kind=Kind.MERGE)] == [merge.id]
    assert len(of(jobs, kind=Kind.FINETUNE)) == 2


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"team": "a"}, ["both", "one"]), ({"team": "a", "run": "1"}, ["both"]), ({"team": "b"}, ["other"]),
        ({"team": "c"}, []), ({"nobody": "a"}, []), ({}, ["none", "other", "both", "one"]),
    ],
    ids=str,
)  # fmt: skip
def test_list_by_labels(jobs: Jobs, labels: dict[str, str], expected: list[str]) -> None:
    made = {
        "one": {"team": "a"},
        "both": {"team": "a", "run": "1"},
        "other": {"team": "b"},
        "none": {},
    }
    for name, values in made.items():
        submit(jobs, name=name, labels=values)
    assert {job.name for job in of(jobs, labels=labels)} == set(expected)
    assert {job.name for job in of(jobs, has_labels=False)} == {"none"}
    assert {job.name for job in of(jobs, has_labels=True)} == {"one", "both", "other"}


# Some fail on SQLite while the label's name is pasted into a JSON path, and letters are stored as escapes.
@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "'", "%s", "a.b", "$[0]", "0", "é ü"])
def test_label_may_have_any_name(jobs: Jobs, name: str) -> None:
    submit(jobs, labels={"other": "x"})
    [job] = submit(jobs, labels={name: "x"})
    assert [found.id for found in of(jobs, labels={name: "x"})] == [job.id]


# Fails on PostgreSQL, whose JSON operators refuse \u0000: one such label breaks the filtered list of every caller.
def test_label_with_a_nul_does_not_break_lists(jobs: Jobs) -> None:
    [good] = submit(jobs, labels={"team": "a"})
    submit(jobs, labels={"note": "a\0b", "team": "b"})
    assert [job.id for job in of(jobs, labels={"team": "a"})] == [good.id]

"""Jobs on both databases, with the operations of callers: submit, get, list, cancel, pause, resume, events."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shared.database.audit.actors import AuditActor, acting
from shared.database.connection import Database
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.records import Job, NewEvent
from shared.errors import Code, Conflict, MensError, NotFound
from tests.support.builders import at_once, claimed, job_in, snapshot, submission
from tests.support.clock import Clock

KEYED = {"idempotency_key": "key-1", "request_digest": "1" * 64}


def submit(jobs: Jobs, count: int = 1, **changes: Any) -> list[Job]:
    return [jobs.submit(submission(**changes))[0] for _ in range(count)]


def messages(jobs: Jobs, job_id: str) -> list[str]:
    return [event.message for event in jobs.events(job_id)]


def test_new_job_is_queued_and_complete(jobs: Jobs) -> None:
    job, created = jobs.submit(submission(labels={"team": "a"}, extra={"training_file": "file-1"}))
    assert created
    assert job.id.startswith("ftjob-")
    assert (job.state, job.stage, job.attempt, job.requested, job.version) == (JobState.QUEUED, None, 0, None, 1)
    assert (job.contract, job.plan, job.labels) == ({"a": 1}, {"b": 2}, {"team": "a"})
    assert (job.progress, job.result, job.error, job.started_at, job.finished_at) == ({}, {}, None, None, None)
    assert messages(jobs, job.id) == ["Job created and queued."]


# Fails while times that a verb returns have microseconds, of which the table keeps only milliseconds.
def test_submit_returns_what_get_returns(jobs: Jobs) -> None:
    submitted = submit(jobs, 5)
    assert submitted == [jobs.get(job.id) for job in submitted]


def test_unknown_job_is_not_found_in_every_verb(jobs: Jobs, database: Database) -> None:
    before = snapshot(database)
    for verb in (jobs.get, jobs.cancel, jobs.pause, jobs.resume):
        with pytest.raises(NotFound) as caught:
            verb("ftjob-none")
        assert caught.value.code is Code.JOB_NOT_FOUND
    assert snapshot(database) == before


# -- idempotency ---------------------------------------------------------------------------------------------------


def test_same_key_and_request_give_the_same_job(jobs: Jobs, database: Database) -> None:
    first, created = jobs.submit(submission(**KEYED))
    before = snapshot(database)
    assert created
    assert jobs.submit(submission(**KEYED)) == (jobs.get(first.id), False)
    assert snapshot(database) == before


def test_replay_shows_the_job_as_it_is_now(jobs: Jobs) -> None:
    job, _ = jobs.submit(submission(**KEYED))
    jobs.cancel(job.id)
    assert jobs.submit(submission(**KEYED)) == (jobs.get(job.id), False)


def test_same_key_with_another_request_is_refused(jobs: Jobs, database: Database) -> None:
    first, _ = jobs.submit(submission(**KEYED))
    before = snapshot(database)
    with pytest.raises(Conflict, match=first.id) as caught:
        jobs.submit(submission(**KEYED | {"request_digest": "2" * 64}))
    assert caught.value.code is Code.IDEMPOTENCY_CONFLICT
    assert snapshot(database) == before


def test_idempotency_keys_belong_to_a_tenant(jobs: Jobs) -> None:
    made = [jobs.of(tenant).submit(submission(**KEYED)) for tenant in ("one", "two")]
    made += [jobs.submit(submission()) for _ in range(2)]
    assert len({job.id for job, created in made if created}) == 4


@pytest.mark.parametrize("round_", range(3))
def test_concurrent_requests_with_one_key_make_one_job(jobs: Jobs, database: Database, round_: int) -> None:
    results = at_once(2 + 2 * round_, lambda _: jobs.submit(submission(**KEYED)))
    assert len({job.id for job, _ in results}) == 1
    assert [created for _, created in results].count(True) == 1
    tables = snapshot(database)
    assert (len(tables["jobs"]), len(tables["events"])) == (1, 1)


def test_of_two_concurrent_requests_with_one_key_one_is_refused(jobs: Jobs) -> None:
    def one(index: int) -> str:
        try:
            return jobs.submit(submission(**KEYED | {"request_digest": str(index) * 64}))[0].id
        except Conflict as error:
            return error.code

    results = at_once(2, one)
    assert results.count(Code.IDEMPOTENCY_CONFLICT) == 1


# -- cancel, pause, resume -----------------------------------------------------------------------------------------

EXPECTED: dict[str, dict[JobState, tuple[JobState, str | None] | None]] = {
    "cancel": {
        JobState.QUEUED: (JobState.CANCELLED, None), JobState.RUNNING: (JobState.RUNNING, "cancel"),
        JobState.PAUSED: (JobState.CANCELLED, None), JobState.SUCCEEDED: None, JobState.FAILED: None, JobState.CANCELLED: None,
    },
    "pause": {
        JobState.QUEUED: (JobState.PAUSED, None), JobState.RUNNING: (JobState.RUNNING, "pause"),
        JobState.PAUSED: None, JobState.SUCCEEDED: None, JobState.FAILED: None, JobState.CANCELLED: None,
    },
    "resume": {
        JobState.QUEUED: None, JobState.RUNNING: None, JobState.PAUSED: (JobState.QUEUED, None),
        JobState.SUCCEEDED: None, JobState.FAILED: None, JobState.CANCELLED: None,
    },
}  # fmt: skip


@pytest.mark.parametrize("verb", list(EXPECTED))
@pytest.mark.parametrize("state", list(JobState))
def test_verb_in_each_state(jobs: Jobs, leases: Leases, database: Database, state: JobState, verb: str) -> None:
    job, _ = job_in(state, jobs, leases)
    assert job.state is state
    before = snapshot(database)
    expected = EXPECTED[verb][state]
    if expected is None:
        with pytest.raises(Conflict) as caught:
            getattr(jobs, verb)(job.id)
        assert caught.value.code is Code.JOB_STATE_CONFLICT
        assert snapshot(database) == before
        return
    after = getattr(jobs, verb)(job.id)
    assert (after.state, after.requested) == expected
    assert after.version > job.version
    assert (after.finished_at is not None) == (after.state is JobState.CANCELLED)
    stored = jobs.get(job.id)
    assert (stored.state, stored.requested, stored.version) == (after.state, after.requested, after.version)
    assert len(jobs.events(job.id)) == len(before["events"]) + 1


@pytest.mark.parametrize(
    ("first", "second", "then"),
    [("cancel", "cancel", None), ("cancel", "pause", None), ("pause", "pause", None), ("pause", "cancel", "cancel")],
)
def test_second_request_to_a_running_job(
    jobs: Jobs, leases: Leases, database: Database, first: str, second: str, then: str | None
) -> None:
    job = claimed(jobs, leases).job
    getattr(jobs, first)(job.id)
    before = snapshot(database)
    if then:
        assert getattr(jobs, second)(job.id).requested == then
        return
    with pytest.raises(Conflict) as caught:
        getattr(jobs, second)(job.id)
    assert caught.value.code is Code.JOB_STATE_CONFLICT
    assert snapshot(database) == before


def test_event_names_who_paused_resumed_and_cancelled(jobs: Jobs) -> None:
    """Only a request has a name; a process that acts by itself has none."""
    [job] = submit(jobs)
    jobs.pause(job.id)
    with acting(AuditActor.of_key("key-1", "alice", None, "127.0.0.1")):
        jobs.resume(job.id)
        jobs.cancel(job.id)
    told = [(event.message, event.data) for event in jobs.events(job.id)]
    by = {"by": "alice"}
    assert told[1:] == [("Job paused.", {}), ("Job resumed and queued.", by), ("Job cancelled.", by)]


def test_concurrent_cancels_succeed_once(jobs: Jobs) -> None:
    [job] = submit(jobs)

    def one(_: int) -> str:
        try:
            return jobs.cancel(job.id).state
        except MensError as error:
            return error.code

    results = at_once(4, one)
    assert sorted(results) == sorted([JobState.CANCELLED, *[Code.JOB_STATE_CONFLICT] * 3])


# -- lists ---------------------------------------------------------------------------------------------------------


def test_pages_list_every_job_once_newest_first(jobs: Jobs) -> None:
    made = {job.id for job in submit(jobs, 7)}
    seen: list[str] = []
    while True:
        page = jobs.list(after=seen[-1] if seen else None, limit=3)
        seen += [job.id for job in page[:3]]
        if len(page) <= 3:
            break
    assert seen == sorted(made, reverse=True)


def test_one_more_than_the_limit_is_listed(jobs: Jobs) -> None:
    submit(jobs, 3)
    assert [len(jobs.list(limit=limit)) for limit in (1, 2, 3, 4)] == [2, 3, 3, 3]


# -- events --------------------------------------------------------------------------------------------------------


def test_event_cursor_returns_every_event_once(jobs: Jobs, leases: Leases) -> None:
    lease = claimed(jobs, leases)
    leases.report(lease, events=[NewEvent(message=f"step {number}") for number in range(8)])
    seen: list[str] = []
    after = 0
    while page := jobs.events(lease.job.id, after=after, limit=3):
        seen += [event.message for event in page]
        after = page[-1].seq
    assert seen == ["Job created and queued.", "Attempt 1 started.", *(f"step {number}" for number in range(8))]


def test_recent_events_are_newest_first_and_one_more(jobs: Jobs, leases: Leases) -> None:
    lease = claimed(jobs, leases)
    leases.report(lease, events=[NewEvent(message=f"step {number}") for number in range(4)])
    page = jobs.recent_events(lease.job.id, limit=2)
    assert [event.message for event in page] == ["step 3", "step 2", "step 1"]
    older = jobs.recent_events(lease.job.id, before=page[1].seq, limit=2)
    assert [event.message for event in older] == ["step 1", "step 0", "Attempt 1 started."]


def test_events_belong_to_their_job(jobs: Jobs) -> None:
    one, other = submit(jobs, 2)
    jobs.cancel(other.id)
    assert {event.job_id for event in jobs.events(one.id)} == {one.id}
    assert len(jobs.events(one.id)) == 1


def test_other_seconds_are_those_of_a_job_that_one_attempt_did(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    """50 s of 80 s were training; a second attempt would have made only a part of the whole."""
    measured = {"tokens_per_second": 10.0, "trained_tokens": 500}
    lease = claimed(jobs, leases)
    clock.advance(80)
    leases.finish(lease, measured)
    assert jobs.training_rate("tiny") == (10.0, lease.job.id, 30.0)
    lease = claimed(jobs, leases)
    leases.release(lease, "The worker stops.")
    again = leases.claim(lease.job.id, "other")
    assert again
    leases.finish(again, measured)
    assert jobs.training_rate("tiny") == (10.0, lease.job.id, None)


def test_event_keeps_its_fields(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    lease = claimed(jobs, leases)
    clock.advance(5)
    leases.report(lease, events=[NewEvent(level="warn", type="metrics", message="m", data={"loss": 0.5})])
    event = jobs.events(lease.job.id)[-1]
    assert (event.level, event.type, event.message, event.data) == ("warn", "metrics", "m", {"loss": 0.5})
    assert event.created_at == clock.now


def test_long_message_is_truncated(jobs: Jobs, leases: Leases) -> None:
    lease = claimed(jobs, leases)
    leases.report(lease, events=[NewEvent(message="é" * 3000)])
    assert jobs.events(lease.job.id)[-1].message == "é" * 2000


# Fails on PostgreSQL, whose text has no NUL: a trainer's last output would stop the worker from reporting it.
def test_message_with_a_nul_is_recorded(jobs: Jobs, leases: Leases) -> None:
    lease = claimed(jobs, leases)
    leases.report(lease, events=[NewEvent(message="died: \0\0 core dumped")])
    assert "core dumped" in jobs.events(lease.job.id)[-1].message


def test_event_cursor_misses_nothing_under_concurrent_writers(jobs: Jobs, leases: Leases) -> None:
    """A reader that follows one job's cursor sees every event once, in the order of `seq`, however many write."""
    lease = claimed(jobs, leases)
    seen: list[int] = []
    count, writers = 4, 3

    def act(index: int) -> None:
        if index < writers:
            for number in range(count):
                leases.report(lease, events=[NewEvent(message=f"{index}.{number}"), NewEvent(message="second")])
            return
        while len(seen) < 2 + 2 * count * writers:
            time.sleep(0.002)
            seen.extend(event.seq for event in jobs.events(lease.job.id, after=seen[-1] if seen else 0, limit=5))

    at_once(writers + 1, act)
    stored = jobs.events(lease.job.id, limit=1000)
    assert seen == [event.seq for event in stored] == sorted(set(seen))
    for writer in range(writers):
        own = [event.message for event in stored if event.message.startswith(f"{writer}.")]
        assert own == [f"{writer}.{number}" for number in range(count)]

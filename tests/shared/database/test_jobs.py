"""The ledger as its users see it, on both databases: submit, look, list, cancel, pause, resume, events."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shared.db import Database
from shared.errors import Code, Conflict, MensError, NotFound
from shared.job import Job, Kind, NewEvent
from shared.jobstate import State
from shared.lease import LeaseLedger
from shared.ledger import Ledger
from tests.shared.conftest import Clock
from tests.shared.samples import at_once, claimed, job_in, snapshot, submission

KEYED = {"idempotency_key": "key-1", "request_digest": "1" * 64}


def submit(ledger: Ledger, count: int = 1, **changes: Any) -> list[Job]:
    return [ledger.submit(submission(**changes))[0] for _ in range(count)]


def messages(ledger: Ledger, job_id: str) -> list[str]:
    return [event.message for event in ledger.events(job_id)]


def test_new_job_is_queued_and_complete(ledger: Ledger) -> None:
    job, created = ledger.submit(submission(labels={"team": "a"}, extra={"training_file": "file-1"}))
    assert created
    assert job.id.startswith("ftjob-")
    assert (job.state, job.stage, job.attempt, job.requested, job.version) == (State.QUEUED, None, 0, None, 1)
    assert (job.contract, job.plan, job.labels) == ({"a": 1}, {"b": 2}, {"team": "a"})
    assert (job.progress, job.result, job.error, job.started_at, job.finished_at) == ({}, {}, None, None, None)
    assert messages(ledger, job.id) == ["Job created and queued."]


# Fails while times in a verb's answer have microseconds, of which the table keeps only milliseconds.
def test_answer_of_submit_is_what_get_answers(ledger: Ledger) -> None:
    jobs = submit(ledger, 5)
    assert jobs == [ledger.get(job.id) for job in jobs]


def test_unknown_job_is_not_found_in_every_verb(ledger: Ledger, database: Database) -> None:
    before = snapshot(database)
    for verb in (ledger.get, ledger.cancel, ledger.pause, ledger.resume):
        with pytest.raises(NotFound) as caught:
            verb("ftjob-none")
        assert caught.value.code is Code.JOB_NOT_FOUND
    assert snapshot(database) == before


# -- idempotency ---------------------------------------------------------------------------------------------------


def test_same_key_and_request_give_the_same_job(ledger: Ledger, database: Database) -> None:
    first, created = ledger.submit(submission(**KEYED))
    before = snapshot(database)
    assert created
    assert ledger.submit(submission(**KEYED)) == (ledger.get(first.id), False)
    assert snapshot(database) == before


def test_replay_shows_the_job_as_it_is_now(ledger: Ledger) -> None:
    job, _ = ledger.submit(submission(**KEYED))
    ledger.cancel(job.id)
    assert ledger.submit(submission(**KEYED)) == (ledger.get(job.id), False)


def test_same_key_with_another_request_is_refused(ledger: Ledger, database: Database) -> None:
    first, _ = ledger.submit(submission(**KEYED))
    before = snapshot(database)
    with pytest.raises(Conflict, match=first.id) as caught:
        ledger.submit(submission(**KEYED | {"request_digest": "2" * 64}))
    assert caught.value.code is Code.IDEMPOTENCY_CONFLICT
    assert snapshot(database) == before


def test_keys_of_two_tenants_are_apart_and_no_key_never_repeats(ledger: Ledger) -> None:
    made = [ledger.of(tenant).submit(submission(**KEYED)) for tenant in ("one", "two")]
    made += [ledger.submit(submission()) for _ in range(2)]
    assert len({job.id for job, created in made if created}) == 4


@pytest.mark.parametrize("round_", range(3))
def test_same_key_at_the_same_moment_makes_one_job(ledger: Ledger, database: Database, round_: int) -> None:
    answers = at_once(2 + 2 * round_, lambda _: ledger.submit(submission(**KEYED)))
    assert len({job.id for job, _ in answers}) == 1
    assert [created for _, created in answers].count(True) == 1
    tables = snapshot(database)
    assert (len(tables["jobs"]), len(tables["events"])) == (1, 1)


def test_same_key_with_two_requests_at_the_same_moment(ledger: Ledger) -> None:
    def one(index: int) -> str:
        try:
            return ledger.submit(submission(**KEYED | {"request_digest": str(index) * 64}))[0].id
        except Conflict as error:
            return error.code

    answers = at_once(2, one)
    assert answers.count(Code.IDEMPOTENCY_CONFLICT) == 1


# -- cancel, pause, resume -----------------------------------------------------------------------------------------

EXPECTED: dict[str, dict[State, tuple[State, str | None] | None]] = {
    "cancel": {
        State.QUEUED: (State.CANCELLED, None), State.RUNNING: (State.RUNNING, "cancel"),
        State.PAUSED: (State.CANCELLED, None), State.SUCCEEDED: None, State.FAILED: None, State.CANCELLED: None,
    },
    "pause": {
        State.QUEUED: (State.PAUSED, None), State.RUNNING: (State.RUNNING, "pause"),
        State.PAUSED: None, State.SUCCEEDED: None, State.FAILED: None, State.CANCELLED: None,
    },
    "resume": {
        State.QUEUED: None, State.RUNNING: None, State.PAUSED: (State.QUEUED, None),
        State.SUCCEEDED: None, State.FAILED: None, State.CANCELLED: None,
    },
}  # fmt: skip


@pytest.mark.parametrize("verb", list(EXPECTED))
@pytest.mark.parametrize("state", list(State))
def test_verb_in_each_state(ledger: Ledger, leases: LeaseLedger, database: Database, state: State, verb: str) -> None:
    job, _ = job_in(state, ledger, leases)
    assert job.state is state
    before = snapshot(database)
    expected = EXPECTED[verb][state]
    if expected is None:
        with pytest.raises(Conflict) as caught:
            getattr(ledger, verb)(job.id)
        assert caught.value.code is Code.JOB_STATE_CONFLICT
        assert snapshot(database) == before
        return
    after = getattr(ledger, verb)(job.id)
    assert (after.state, after.requested) == expected
    assert after.version > job.version
    assert (after.finished_at is not None) == (after.state is State.CANCELLED)
    stored = ledger.get(job.id)
    assert (stored.state, stored.requested, stored.version) == (after.state, after.requested, after.version)
    assert len(ledger.events(job.id)) == len(before["events"]) + 1


@pytest.mark.parametrize(
    ("first", "second", "then"),
    [("cancel", "cancel", None), ("cancel", "pause", None), ("pause", "pause", None), ("pause", "cancel", "cancel")],
)
def test_second_request_to_a_running_job(
    ledger: Ledger, leases: LeaseLedger, database: Database, first: str, second: str, then: str | None
) -> None:
    job = claimed(ledger, leases).job
    getattr(ledger, first)(job.id)
    before = snapshot(database)
    if then:
        assert getattr(ledger, second)(job.id).requested == then
        return
    with pytest.raises(Conflict) as caught:
        getattr(ledger, second)(job.id)
    assert caught.value.code is Code.JOB_STATE_CONFLICT
    assert snapshot(database) == before


def test_cancels_at_the_same_moment_succeed_once(ledger: Ledger) -> None:
    [job] = submit(ledger)

    def one(_: int) -> str:
        try:
            return ledger.cancel(job.id).state
        except MensError as error:
            return error.code

    answers = at_once(4, one)
    assert sorted(answers) == sorted([State.CANCELLED, *[Code.JOB_STATE_CONFLICT] * 3])


# -- lists ---------------------------------------------------------------------------------------------------------


def test_pages_go_through_every_job_once_newest_first(ledger: Ledger) -> None:
    made = {job.id for job in submit(ledger, 7)}
    seen: list[str] = []
    while True:
        page = ledger.list_jobs(after=seen[-1] if seen else None, limit=3)
        seen += [job.id for job in page[:3]]
        if len(page) <= 3:
            break
    assert seen == sorted(made, reverse=True)


def test_one_more_than_the_limit_is_listed(ledger: Ledger) -> None:
    submit(ledger, 3)
    assert [len(ledger.list_jobs(limit=limit)) for limit in (1, 2, 3, 4)] == [2, 3, 3, 3]


def test_list_by_kind(ledger: Ledger) -> None:
    submit(ledger, 2)
    [merge] = submit(ledger, kind=Kind.MERGE)
    assert [job.id for job in ledger.list_jobs(kind=Kind.MERGE)] == [merge.id]
    assert len(ledger.list_jobs(kind=Kind.FINETUNE)) == 2


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"team": "a"}, ["both", "one"]), ({"team": "a", "run": "1"}, ["both"]), ({"team": "b"}, ["other"]),
        ({"team": "c"}, []), ({"nobody": "a"}, []), ({}, ["none", "other", "both", "one"]),
    ],
    ids=str,
)  # fmt: skip
def test_list_by_labels(ledger: Ledger, labels: dict[str, str], expected: list[str]) -> None:
    made = {
        "one": {"team": "a"},
        "both": {"team": "a", "run": "1"},
        "other": {"team": "b"},
        "none": {},
    }
    for name, values in made.items():
        submit(ledger, name=name, labels=values)
    assert {job.name for job in ledger.list_jobs(labels=labels)} == set(expected)


# Some fail on SQLite while the label's name is pasted into a JSON path, and letters are stored as escapes.
@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "'", "%s", "a.b", "$[0]", "0", "é ü"])
def test_label_may_have_any_name(ledger: Ledger, name: str) -> None:
    submit(ledger, labels={"other": "x"})
    [job] = submit(ledger, labels={name: "x"})
    assert [found.id for found in ledger.list_jobs(labels={name: "x"})] == [job.id]


# Fails on PostgreSQL, whose JSON operators refuse \u0000: one such label breaks everybody's filtered list.
def test_label_with_a_nul_does_not_break_lists(ledger: Ledger) -> None:
    [good] = submit(ledger, labels={"team": "a"})
    submit(ledger, labels={"note": "a\0b", "team": "b"})
    assert [job.id for job in ledger.list_jobs(labels={"team": "a"})] == [good.id]


# -- events --------------------------------------------------------------------------------------------------------


def test_event_cursor_goes_through_every_event_once(ledger: Ledger, leases: LeaseLedger) -> None:
    lease = claimed(ledger, leases)
    leases.report(lease, events=[NewEvent(message=f"step {number}") for number in range(8)])
    seen: list[str] = []
    after = 0
    while page := ledger.events(lease.job.id, after=after, limit=3):
        seen += [event.message for event in page]
        after = page[-1].seq
    assert seen == ["Job created and queued.", "Attempt 1 started.", *(f"step {number}" for number in range(8))]


def test_recent_events_are_newest_first_and_one_more(ledger: Ledger, leases: LeaseLedger) -> None:
    lease = claimed(ledger, leases)
    leases.report(lease, events=[NewEvent(message=f"step {number}") for number in range(4)])
    page = ledger.recent_events(lease.job.id, limit=2)
    assert [event.message for event in page] == ["step 3", "step 2", "step 1"]
    older = ledger.recent_events(lease.job.id, before=page[1].seq, limit=2)
    assert [event.message for event in older] == ["step 1", "step 0", "Attempt 1 started."]


def test_events_of_jobs_are_apart(ledger: Ledger) -> None:
    one, other = submit(ledger, 2)
    ledger.cancel(other.id)
    assert {event.job_id for event in ledger.events(one.id)} == {one.id}
    assert len(ledger.events(one.id)) == 1


def test_event_keeps_its_fields(ledger: Ledger, leases: LeaseLedger, clock: Clock) -> None:
    lease = claimed(ledger, leases)
    clock.advance(5)
    leases.report(lease, events=[NewEvent(level="warn", type="metrics", message="m", data={"loss": 0.5})])
    event = ledger.events(lease.job.id)[-1]
    assert (event.level, event.type, event.message, event.data) == ("warn", "metrics", "m", {"loss": 0.5})
    assert event.created_at == clock.now


def test_long_message_is_cut(ledger: Ledger, leases: LeaseLedger) -> None:
    lease = claimed(ledger, leases)
    leases.report(lease, events=[NewEvent(message="é" * 3000)])
    assert ledger.events(lease.job.id)[-1].message == "é" * 2000


# Fails on PostgreSQL, whose text has no NUL: a trainer's last words would stop the worker from reporting them.
def test_message_with_a_nul_is_recorded(ledger: Ledger, leases: LeaseLedger) -> None:
    lease = claimed(ledger, leases)
    leases.report(lease, events=[NewEvent(message="died: \0\0 core dumped")])
    assert "core dumped" in ledger.events(lease.job.id)[-1].message


def test_cursor_misses_nothing_under_concurrent_writers(ledger: Ledger, leases: LeaseLedger) -> None:
    """A reader that follows one job's cursor sees every event once, in the order of `seq`, whoever writes."""
    lease = claimed(ledger, leases)
    seen: list[int] = []
    count, writers = 4, 3

    def act(index: int) -> None:
        if index < writers:
            for number in range(count):
                leases.report(lease, events=[NewEvent(message=f"{index}.{number}"), NewEvent(message="second")])
            return
        while len(seen) < 2 + 2 * count * writers:
            time.sleep(0.002)
            seen.extend(event.seq for event in ledger.events(lease.job.id, after=seen[-1] if seen else 0, limit=5))

    at_once(writers + 1, act)
    stored = ledger.events(lease.job.id, limit=1000)
    assert seen == [event.seq for event in stored] == sorted(set(seen))
    for writer in range(writers):
        own = [event.message for event in stored if event.message.startswith(f"{writer}.")]
        assert own == [f"{writer}.{number}" for number in range(count)]

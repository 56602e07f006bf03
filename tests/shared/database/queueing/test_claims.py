"""Claims by the rule of the queue, on both databases: fair, within quotas, and correct when workers claim concurrently."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import event

from shared.database.connection import Database
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.queueing.quotas import Quotas
from shared.database.tables.jobs import GpuTimeRow
from shared.errors import Code, JobFailed
from tests.support.builders import LEASE_SECONDS, at_once, submission
from tests.support.clock import Clock


@pytest.fixture
def acme(jobs: Jobs) -> Jobs:
    return jobs.of("acme")


@pytest.fixture
def quotas(database: Database) -> Quotas:
    return Quotas(database)


def submit(jobs: Jobs, **terms: object) -> str:
    return jobs.submit(submission(**terms))[0].id


def claim_all(leases: Leases) -> list[str]:
    claimed = []
    while lease := leases.claim_next("worker"):
        claimed.append(lease.job.id)
    return claimed


def test_tenants_take_turns(jobs: Jobs, acme: Jobs, leases: Leases, clock: Clock) -> None:
    backlog = [submit(jobs) for _ in range(3)]
    clock.advance(60)
    late = submit(acme)
    assert claim_all(leases) == [backlog[0], late, *backlog[1:]]


def test_who_has_used_less_is_first(jobs: Jobs, acme: Jobs, leases: Leases, clock: Clock) -> None:
    submit(jobs)
    lease = leases.claim_next("worker")
    assert lease
    clock.advance(600)
    leases.finish(lease, {})
    second, late = submit(jobs), None
    clock.advance(5)
    late = submit(acme)
    assert claim_all(leases) == [late, second]


def test_use_is_forgotten_after_a_day(jobs: Jobs, acme: Jobs, leases: Leases, clock: Clock) -> None:
    submit(jobs)
    lease = leases.claim_next("worker")
    assert lease
    clock.advance(600)
    leases.finish(lease, {})
    clock.advance(25 * 3600)
    first, second = submit(jobs), submit(acme)
    assert claim_all(leases) == [first, second]


def test_priority_decides_first_and_can_be_changed(jobs: Jobs, leases: Leases) -> None:
    low, normal, raised = submit(jobs, priority=-1), submit(jobs), submit(jobs)
    assert jobs.set_priority(raised, 2).priority == 2
    assert jobs.events(raised)[-1].message == "Priority changed from 0 to 2."
    assert claim_all(leases) == [raised, normal, low]


def test_the_priority_of_a_finished_job_is_final(jobs: Jobs) -> None:
    job = submit(jobs)
    jobs.cancel(job)
    with pytest.raises(Exception, match="JOB_STATE_CONFLICT"):
        jobs.set_priority(job, 1)


def test_a_retry_waits_and_others_pass_it(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    first = submit(jobs)
    lease = leases.claim_next("worker")
    assert lease
    leases.fail(lease, JobFailed(Code.TRAINER_KILLED, "Killed.", retryable=True))
    second = submit(jobs)
    assert claim_all(leases) == [second]
    clock.advance(2)
    assert claim_all(leases) == [first]


def test_every_job_is_claimed_once_from_eight_threads(jobs: Jobs, acme: Jobs, leases: Leases) -> None:
    ids = [submit(owner) for owner in (jobs, acme) for _ in range(3)]
    claimed = at_once(8, lambda index: leases.claim_next(f"worker-{index}"))
    assert sorted(lease.job.id for lease in claimed if lease) == sorted(ids)
    assert {jobs.of("acme").get(job_id).attempt for job_id in ids} == {1}


def test_quotas_hold_when_workers_claim_at_once(jobs: Jobs, leases: Leases, quotas: Quotas, acme: Jobs) -> None:
    quotas.set("acme", {"running_jobs": 2})
    ids = [submit(acme) for _ in range(6)]
    claimed = [lease for lease in at_once(6, lambda index: leases.claim_next(f"worker-{index}")) if lease]
    assert len(claimed) == 2
    assert leases.may_run("acme") in set(ids) - {lease.job.id for lease in claimed}
    leases.finish(claimed[0], {})
    assert len(claim_all(leases)) == 1


def test_gpu_minutes_are_held_once_when_workers_claim_at_once(leases: Leases, quotas: Quotas, acme: Jobs) -> None:
    for _ in range(5):
        submit(acme, max_gpu_minutes=10)
    quotas.set("acme", {"gpu_minutes_per_month": 25})
    claimed = [lease for lease in at_once(5, lambda index: leases.claim_next(f"worker-{index}")) if lease]
    assert len(claimed) == 2
    use = quotas.use("acme")
    assert (use.running, use.queued, use.gpu_minutes_held, use.gpu_minutes_used) == (2, 3, 20.0, 0.0)


ENDINGS = {
    "finish": lambda leases, lease: leases.finish(lease, {}),
    "fail": lambda leases, lease: leases.fail(lease, JobFailed(Code.TRAINER_CRASHED, "It crashed.")),
    "retry": lambda leases, lease: leases.fail(lease, JobFailed(Code.TRAINER_KILLED, "Killed.", retryable=True)),
    "stop": lambda leases, lease: leases.stop(lease),
    "pause": lambda leases, lease: leases.confirm_pause(lease),
    "release": lambda leases, lease: leases.release(lease, "shutdown"),
}


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_every_ending_settles_the_hold(leases: Leases, quotas: Quotas, acme: Jobs, clock: Clock, ending: str) -> None:
    job = submit(acme, max_gpu_minutes=60)
    lease = leases.claim_next("worker", gpus=2)
    assert lease
    assert quotas.use("acme").gpu_minutes_held == 60
    clock.advance(90)
    ENDINGS[ending](leases, lease)
    use = quotas.use("acme")
    assert (use.gpu_minutes_held, use.gpu_minutes_used) == (0, 3.0)
    if acme.get(job).state is JobState.QUEUED:
        clock.advance(60)
        again = leases.claim_next("worker", gpus=2)
        assert again
        assert (again.spent.wall_seconds, again.spent.gpu_seconds) == (90, 180)


def test_a_worker_that_died_settles_with_the_sweep(leases: Leases, quotas: Quotas, acme: Jobs, clock: Clock) -> None:
    submit(acme)
    leases.claim_next("worker")
    clock.advance(LEASE_SECONDS + 1)
    leases.sweep()
    use = quotas.use("acme")
    assert (use.gpu_minutes_held, use.gpu_minutes_used) == (0, pytest.approx(1.1))


def test_what_another_release_has_ended_is_settled_by_the_sweep(
    leases: Leases, quotas: Quotas, acme: Jobs, clock: Clock, database: Database
) -> None:
    job = submit(acme)
    leases.claim_next("worker")
    with database.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE jobs SET state = 'succeeded' WHERE id = '{job}'")
    clock.advance(60)
    leases.sweep()
    assert quotas.use("acme").gpu_minutes_used == 1.0
    with database.read() as session:
        held = session.get(GpuTimeRow, (job, 1))
        assert held
        assert held.outcome == "abandoned"


def test_a_job_is_expected_to_take_what_those_like_it_have_taken(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    for seconds in (100, 300, 200):
        submit(jobs, max_gpu_minutes=1)
        lease = leases.claim_next("worker")
        assert lease
        clock.advance(seconds)
        leases.finish(lease, {})
    job = submit(jobs)
    other = submit(jobs, base_model="another")
    planned = submit(jobs, expected_seconds=7.0)
    held = {}
    while lease := leases.claim_next("worker"):
        with leases.database.read() as session:
            row = session.get(GpuTimeRow, (lease.job.id, 1))
            assert row
            held[lease.job.id] = row.held
    assert held == {job: 200, other: 200, planned: 7}


def statements_of(database: Database, claim: Callable[[], object]) -> list[str]:
    """Return the statements that a claim sends to the database."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        claim()
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    return [statement for statement in sent if not statement.startswith(("BEGIN", "SELECT clock"))]


def test_a_job_that_waits_alone_is_compared_with_nothing(database: Database, jobs: Jobs, leases: Leases) -> None:
    """A worker that has waited for a job reads who waits and the row, and writes three."""
    submit(jobs)
    alone = statements_of(database, lambda: leases.claim_next("worker"))
    assert not [statement for statement in alone if "sum(" in statement]
    assert [statement.split()[0] for statement in alone if not statement.startswith("INSERT INTO changes")] == [
        *["SELECT"] * 2,
        *["INSERT"] * 2,
        "UPDATE",
    ]
    submit(jobs)
    submit(jobs)
    assert [one for one in statements_of(database, lambda: leases.claim_next("worker")) if "sum(" in one]


def test_a_job_that_waits_alone_is_held_back_by_its_quota(jobs: Jobs, leases: Leases, database: Database) -> None:
    submit(jobs)
    assert leases.claim_next("worker")
    submit(jobs)
    Quotas(database).set("shared", {"running_jobs": 1})
    assert leases.claim_next("worker") is None

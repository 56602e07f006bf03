"""Numbers of jobs by state: only those that a tenant can see, read from an index alone. On both databases."""

from __future__ import annotations

from sqlalchemy import event

from shared.database.connection import Database
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.lists.job_filter import JobFilter
from tests.support.builders import job_in, submission


def test_a_tenant_counts_its_own_and_shared_jobs(jobs: Jobs, leases: Leases) -> None:
    for state in (JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED):
        job_in(state, jobs, leases)
    jobs.of("acme").submit(submission(name="mine"))
    jobs.of("other").submit(submission())
    shared = {JobState.SUCCEEDED: 2, JobState.FAILED: 1}
    assert jobs.count_states() == shared
    assert jobs.of("acme").count_states() == shared | {JobState.QUEUED: 1}
    assert jobs.of("acme").count_states(JobFilter(text="mine")) == {JobState.QUEUED: 1}


def test_no_job_is_read_for_it(database: Database, jobs: Jobs) -> None:
    """Else ten thousand jobs, with a contract and a plan each, would be read for a number."""
    sent: list[tuple[str, tuple[object, ...]]] = []
    event.listen(database.engine, "before_cursor_execute", lambda *call: sent.append((call[2], call[3])))
    jobs.count_states()
    [(statement, values)] = [each for each in sent if "count" in each[0]]
    if database.is_sqlite:
        with database.engine.connect() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
        assert "USING COVERING INDEX ix_jobs_owner_state" in str(plan)

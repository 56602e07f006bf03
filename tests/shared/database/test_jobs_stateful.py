"""Random sequences of operations on jobs and leases (SQLite), compared with a model of a few lines."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shared.database.attempt_failures import BACKOFF_SECONDS, MAX_FAILURES
from shared.database.connection import Database
from shared.database.job_states import FINAL, JobState
from shared.database.jobs import Jobs
from shared.database.leases import Lease, Leases
from shared.database.records import NewEvent
from shared.errors import Code, Conflict, JobFailed, LeaseLost
from tests.support.builders import new_adapter, submission

LEASE_SECONDS = 30


@dataclass
class Model:
    """The expected state of one job."""

    state: str = "queued"
    requested: str | None = None
    attempt: int = 0
    failures: int = 0
    not_before: datetime | None = None
    expires: datetime | None = None

    def to(self, state: str) -> None:
        self.state, self.requested, self.expires = state, None, None

    def fail(self, now: datetime, retryable: bool) -> None:
        self.failures += retryable
        if not retryable or self.failures == MAX_FAILURES:
            self.to("failed")
            return
        self.not_before = now + timedelta(seconds=BACKOFF_SECONDS[min(self.failures, len(BACKOFF_SECONDS)) - 1])
        self.to("queued")

    def ready(self, now: datetime) -> bool:
        return self.state == "queued" and (self.not_before is None or self.not_before <= now)


class JobsMachine(RuleBasedStateMachine):
    """Each rule applies one verb to the database and to the model; the invariant compares them."""

    template: Path
    jobs = Bundle("jobs")
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        shutil.copy(self.template, self.folder / "mens.db")
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.database = Database(f"sqlite:///{self.folder}/mens.db")
        self.database.now = lambda session: self.now
        self.verbs, self.worker = Jobs(self.database), Leases(self.database, LEASE_SECONDS)
        self.models: dict[str, Model] = {}

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)

    @precondition(lambda self: sum(model.state not in FINAL for model in self.models.values()) < 2)
    @rule(target=jobs)
    def submit(self) -> str:
        job, _ = self.verbs.submit(submission())
        self.models[job.id] = Model()
        return job.id

    @rule(target=leases, job=jobs)
    def claim(self, job: str) -> object:
        model = self.models[job]
        lease = self.worker.claim(job, "worker")
        assert (lease is not None) == model.ready(self.now)
        if lease is None:
            return multiple()
        model.to("running")
        model.attempt += 1
        model.expires = self.now + timedelta(seconds=LEASE_SECONDS)
        assert lease.token == model.attempt
        return lease

    @rule(job=jobs, verb=st.sampled_from(["cancel", "pause", "resume"]))
    def request(self, job: str, verb: str) -> None:
        model = self.models[job]
        call: Callable[[str], object] = getattr(self.verbs, verb)
        if verb == "resume":
            allowed = model.state == "paused"
        elif model.state == "running":
            allowed = model.requested not in ("cancel", verb)
        else:
            allowed = model.state == "queued" or (model.state, verb) == ("paused", "cancel")
        if not allowed:
            with pytest.raises(Conflict):
                call(job)
        elif model.state == "running":
            call(job)
            model.requested = verb
        else:
            call(job)
            model.to({"cancel": "cancelled", "pause": "paused", "resume": "queued"}[verb])

    @rule(lease=leases)
    def heartbeat(self, lease: Lease) -> None:
        if self.write(lease, lambda: self.worker.heartbeat(lease)):
            self.models[lease.job.id].expires = self.now + timedelta(seconds=LEASE_SECONDS)

    @rule(lease=leases)
    def report(self, lease: Lease) -> None:
        self.write(lease, lambda: self.worker.report(lease, events=[NewEvent(message="step")]))

    @precondition(lambda self: len(self.models) % 2 == 0)  # every other job lives longer
    @rule(lease=leases)
    def finish(self, lease: Lease) -> None:
        adapter = new_adapter(f"demo@{lease.job.id}")
        if self.write(lease, lambda: self.worker.finish(lease, {}, adapters=[adapter], alias="prod")):
            self.models[lease.job.id].to("succeeded")

    @rule(lease=leases, retryable=st.sampled_from([True, True, True, False]))
    def fail(self, lease: Lease, retryable: bool) -> None:
        model = self.models[lease.job.id]
        if retryable and model.requested:
            return  # test_leases.py tests what becomes of the request then
        error = JobFailed(Code.TRAINER_CRASHED, "It crashed.", retryable=retryable)
        if self.write(lease, lambda: self.worker.fail(lease, error)):
            model.fail(self.now, retryable)

    @rule(lease=consumes(leases))
    def stop(self, lease: Lease) -> None:
        if self.write(lease, lambda: self.worker.stop(lease)):
            self.models[lease.job.id].to("cancelled")

    @rule(lease=leases)
    def confirm_pause(self, lease: Lease) -> None:
        if self.write(lease, lambda: self.worker.confirm_pause(lease)):
            model = self.models[lease.job.id]
            model.to("cancelled" if model.requested == "cancel" else "paused")

    @rule(seconds=st.sampled_from([1, 5, LEASE_SECONDS, LEASE_SECONDS + 1, 60]))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def sweep(self) -> None:
        for model in self.models.values():
            if model.expires and model.expires < self.now:
                if model.requested:
                    model.to({"cancel": "cancelled", "pause": "paused"}[model.requested])
                else:
                    model.fail(self.now, retryable=True)
        assert set(self.worker.sweep()) == {job for job, model in self.models.items() if model.ready(self.now)}

    @invariant()
    def database_agrees_with_the_model(self) -> None:
        for job_id, model in self.models.items():
            job = self.verbs.get(job_id)
            assert (job.state, job.requested, job.attempt) == (model.state, model.requested, model.attempt)
            assert (job.finished_at is not None) == (job.state in FINAL)
            assert (job.error is not None) == (job.state is JobState.FAILED)

    def write(self, lease: Lease, call: Callable[[], object]) -> bool:
        """Return whether the write was accepted, which it must be exactly when the model holds the lease."""
        model = self.models[lease.job.id]
        if model.state == "running" and model.attempt == lease.token:
            call()
            return True
        with pytest.raises(LeaseLost):
            call()
        return False


@pytest.mark.exhaustive
def test_random_verbs_agree_with_the_model(sqlite_template: Path) -> None:
    JobsMachine.template = sqlite_template
    run_state_machine_as_test(JobsMachine, settings=settings(max_examples=40, stateful_step_count=50, deadline=None))

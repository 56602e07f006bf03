"""The outbox on both databases: written with the end of a job, claimed by one worker, retried on a schedule, ended
after a limit.
"""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from shared.database.connection import Database
from shared.database.evaluation.evals import Evals
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.records import Kind
from shared.database.webhooks import deliveries as deliveries_module
from shared.database.webhooks.deliveries import KEPT, LEASE, RETRY_SECONDS, ClaimedDelivery, Deliveries, Outcome
from shared.database.webhooks.endpoints import MAX_ENDPOINTS, EndpointFields, Endpoints
from shared.errors import Code, Conflict, JobFailed, NotFound
from shared.webhooks.events import EventType
from tests.support.builders import at_once, claimed, new_adapter, submission
from tests.support.clock import Clock

ALL = list(EventType)
URL = "https://hooks.example/x"
DOWN = Outcome(500, "HTTP 500")
TAKEN = Outcome(204, None)
CRASH = JobFailed(Code.TRAINER_CRASHED, "The trainer crashed.")


@pytest.fixture
def endpoints(database: Database) -> Endpoints:
    return Endpoints(database, "shared")


@pytest.fixture
def deliveries(database: Database) -> Deliveries:
    return Deliveries(database, jitter=lambda: 0.0)


def end_a_job(jobs: Jobs) -> str:
    job, _ = jobs.submit(submission())
    return jobs.cancel(job.id).id


def only(found: list[ClaimedDelivery]) -> ClaimedDelivery:
    assert len(found) == 1
    return found[0]


def test_every_end_of_a_job_is_an_event(
    endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs, leases: Leases
) -> None:
    endpoints.create("all", URL, ALL)
    ended = {"cancelled": end_a_job(jobs)}
    lease = claimed(jobs, leases)
    leases.finish(lease, {})
    ended["succeeded"] = lease.job.id
    lease = claimed(jobs, leases)
    leases.fail(lease, CRASH)
    ended["failed"] = lease.job.id
    found = []
    while claim := deliveries.claim(16):
        found.append(json.loads(only(claim).payload) | {"webhook": claim[0].event_id})
        deliveries.settle(claim[0], TAKEN)
    assert {event["type"]: event["data"]["id"] for event in found} == {
        f"fine_tuning.job.{state}": job_id for state, job_id in ended.items()
    }
    for event in found:
        assert (event["object"], event["id"]) == ("event", event["webhook"])
        assert event["id"].startswith("evt_")


def test_a_checkpoint_that_can_be_called_is_an_event(
    endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs, leases: Leases
) -> None:
    endpoints.create("all", URL, ALL)
    lease = claimed(jobs, leases)
    checkpoint = new_adapter(f"demo@{'a' * 64}", digest="a" * 64, step=3, final=False, published=False)
    leases.register(lease, checkpoint)
    assert not deliveries.claim(16), "it is stored, and cannot be called"
    leases.register(lease, checkpoint.model_copy(update={"published": True, "certificates": {"replica-1": {}}}))
    event = json.loads(only(deliveries.claim(16)).payload)
    assert (event["type"], event["data"]) == ("fine_tuning.job.checkpoint.created", {"id": checkpoint.id})
    leases.register(lease, checkpoint.model_copy(update={"published": True, "certificates": {"replica-1": {}}}))
    assert not deliveries.claim(16), "after a pause it is registered again"


def test_checkpoints_of_a_result_are_events_once(
    endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs, leases: Leases
) -> None:
    endpoints.create("all", URL, [EventType.CHECKPOINT_CREATED])
    made = [
        new_adapter(f"demo@{digit * 64}", digest=digit * 64, step=step, final=digit == "c")
        for step, digit in enumerate("abc", start=1)
    ]
    leases.finish(claimed(jobs, leases), {}, adapters=made)
    created = []
    while claim := deliveries.claim(16):
        created.append(json.loads(only(claim).payload)["data"]["id"])
        deliveries.settle(claim[0], TAKEN)
    assert created == [one.id for one in made[:2]]
    leases.finish(claimed(jobs, leases), {}, adapters=made)
    assert not deliveries.claim(16)


def test_a_run_of_an_eval_ends_with_its_job(database: Database, endpoints: Endpoints, jobs: Jobs) -> None:
    endpoint, _ = endpoints.create("all", URL, ALL)
    spec = {"data_source_config": {"type": "custom", "item_schema": {}}, "testing_criteria": []}
    eval_id = Evals(database, "shared").create("", {}, spec).id
    job, _ = jobs.submit(submission(kind=Kind.EVALUATE, eval_id=eval_id))
    jobs.cancel(job.id)
    assert [each.type for each in endpoints.deliveries(endpoint.id)] == ["eval.run.canceled"]
    merge, _ = jobs.submit(submission(kind=Kind.MERGE, plan={}))
    jobs.cancel(merge.id)
    assert len(endpoints.deliveries(endpoint.id)) == 1  # OpenAI has no name for it


def test_event_and_end_of_the_job_are_one_transaction(
    endpoints: Endpoints, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, _ = endpoints.create("all", URL, ALL)
    job, _ = jobs.submit(submission())
    with monkeypatch.context() as patch:
        patch.setattr("shared.database.jobs.add_events", lambda *_: 1 / 0)  # after the row of the outbox
        with pytest.raises(ZeroDivisionError):
            jobs.cancel(job.id)
    assert jobs.get(job.id).state is JobState.QUEUED
    assert endpoints.deliveries(endpoint.id) == []


def test_an_endpoint_gets_its_tenants_jobs_and_its_own_event_types(
    database: Database, endpoints: Endpoints, jobs: Jobs
) -> None:
    foreign = Endpoints(database, "acme")
    theirs, _ = foreign.create("theirs", URL, ALL)
    deaf, _ = endpoints.create("deaf", URL, [EventType.JOB_FAILED])
    off, _ = endpoints.create("off", URL, ALL)
    endpoints.update(off.id, EndpointFields(enabled=False))
    end_a_job(jobs)
    assert endpoints.deliveries(deaf.id) == endpoints.deliveries(off.id) == foreign.deliveries(theirs.id) == []
    with pytest.raises(NotFound) as refusal:
        endpoints.get(theirs.id)
    assert refusal.value.code is Code.WEBHOOK_NOT_FOUND


def test_a_delivery_is_claimed_by_one_of_many(
    database: Database, endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs
) -> None:
    for number in range(4):
        endpoints.create(str(number), URL, ALL)
    end_a_job(jobs)
    taken = [each.id for found in at_once(4, lambda _: Deliveries(database).claim(2)) for each in found]
    taken += [each.id for each in deliveries.claim(16)]
    assert len(taken) == len(set(taken)) == 4


def test_a_receiver_is_sent_one_at_a_time_and_keeps_no_other_waiting(
    endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs, clock: Clock
) -> None:
    slow, _ = endpoints.create("slow", URL, ALL)
    other, _ = endpoints.create("other", URL, ALL)
    for _ in range(3):
        end_a_job(jobs)
        clock.advance(1)
    assert {each.endpoint_id for each in deliveries.claim(16)} == {slow.id, other.id}
    assert deliveries.claim(16) == []


def test_schedule_of_attempts_ends_with_the_endpoint_disabled(
    endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs, clock: Clock
) -> None:
    endpoint, _ = endpoints.create("down", URL, ALL)
    end_a_job(jobs)
    event_ids = set()
    for delay in RETRY_SECONDS:
        attempt = only(deliveries.claim(16))
        event_ids.add(attempt.event_id)
        assert deliveries.settle(attempt, DOWN) is None
        clock.advance(delay - 1)
        assert deliveries.claim(16) == []
        clock.advance(1)
    end_a_job(jobs)
    last = min(deliveries.claim(16), key=lambda each: each.id)
    assert last.token == len(RETRY_SECONDS) + 1
    reason = deliveries.settle(last, DOWN)
    assert reason is not None
    assert "10 attempts" in reason
    assert event_ids == {last.event_id}
    found = endpoints.get(endpoint.id)
    assert (found.disabled_at, found.disabled_reason) == (clock.now, reason)
    assert [each.status for each in endpoints.deliveries(endpoint.id)] == ["failed", "failed"]
    end_a_job(jobs)
    assert deliveries.claim(16) == []
    endpoints.update(endpoint.id, EndpointFields(enabled=True))
    end_a_job(jobs)
    assert len(deliveries.claim(16)) == 1


def test_an_endpoint_that_takes_other_events_is_not_disabled(
    endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs, clock: Clock
) -> None:
    endpoint, _ = endpoints.create("picky", URL, ALL)
    end_a_job(jobs)
    for delay in RETRY_SECONDS:
        deliveries.settle(only(deliveries.claim(16)), DOWN)
        clock.advance(delay / 2)
        end_a_job(jobs)
        deliveries.settle(only(deliveries.claim(16)), TAKEN)
        clock.advance(delay / 2)
    assert deliveries.settle(only(deliveries.claim(16)), DOWN) is None
    assert endpoints.get(endpoint.id).disabled_at is None
    assert len(endpoints.deliveries(endpoint.id, status="failed")) == 1


def test_jitter_lengthens_a_delay(database: Database, endpoints: Endpoints, jobs: Jobs, clock: Clock) -> None:
    endpoint, _ = endpoints.create("down", URL, ALL)
    end_a_job(jobs)
    late = Deliveries(database, jitter=lambda: 1.0)
    late.settle(only(late.claim(16)), DOWN)
    delay = endpoints.deliveries(endpoint.id)[0].next_attempt_at
    assert delay == clock.now + timedelta(seconds=RETRY_SECONDS[0] * (1 + deliveries_module.JITTER))


def test_a_clock_that_went_back_delays_no_delivery(
    endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs, clock: Clock
) -> None:
    endpoints.create("all", URL, ALL)
    end_a_job(jobs)
    clock.advance(-3600)
    assert deliveries.settle(only(deliveries.claim(16)), DOWN) is None, "what was never tried is due"
    clock.advance(-3600)
    assert only(deliveries.claim(16)).token == 2, "the first delay has no hour"
    clock.advance(-3600)
    lost = only(deliveries.claim(16))
    assert lost.token == 3, "nor has a lease"
    assert deliveries.settle(lost, DOWN) is None
    clock.advance(RETRY_SECONDS[2] - 1)
    assert deliveries.claim(16) == [], "a delay of this clock is kept"


def test_410_disables_at_once(endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs) -> None:
    endpoint, _ = endpoints.create("gone", URL, ALL)
    end_a_job(jobs)
    assert deliveries.settle(only(deliveries.claim(16)), Outcome(410, "HTTP 410")) == "it answered 410 Gone"
    assert endpoints.get(endpoint.id).disabled_reason == "it answered 410 Gone"


def test_a_lost_attempt_is_made_again_and_what_it_says_later_is_dropped(
    endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs, clock: Clock
) -> None:
    endpoint, _ = endpoints.create("x", URL, ALL)
    end_a_job(jobs)
    lost = only(deliveries.claim(16))
    clock.advance(LEASE.total_seconds() - 1)
    assert deliveries.claim(16) == []
    clock.advance(1)
    again = only(deliveries.claim(16))
    assert (again.event_id, again.token) == (lost.event_id, 2)
    deliveries.settle(lost, DOWN)
    assert endpoints.deliveries(endpoint.id)[0].last_error is None
    deliveries.settle(again, TAKEN)
    delivered = endpoints.deliveries(endpoint.id)[0]
    assert (delivered.status, delivered.attempts, delivered.status_code) == ("delivered", 2, 204)


def test_both_secrets_sign_until_the_overlap_ends(
    endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs, clock: Clock
) -> None:
    endpoint, first = endpoints.create("x", URL, ALL)
    rotated, second = endpoints.rotate_secret(endpoint.id, keep_old=True)
    end_a_job(jobs)
    attempt = only(deliveries.claim(16))
    assert attempt.signing_secrets == (second, first)
    assert first not in repr(attempt)
    assert second not in repr(rotated)
    deliveries.settle(attempt, TAKEN)
    clock.advance(24 * 3600)
    end_a_job(jobs)
    attempt = only(deliveries.claim(16))
    assert attempt.signing_secrets == (second,)
    deliveries.settle(attempt, TAKEN)
    _, third = endpoints.rotate_secret(endpoint.id, keep_old=False)
    end_a_job(jobs)
    assert only(deliveries.claim(16)).signing_secrets == (third,)


def test_a_deleted_endpoint_takes_its_deliveries_along(
    endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs
) -> None:
    endpoint, _ = endpoints.create("x", URL, ALL)
    end_a_job(jobs)
    attempt = only(deliveries.claim(16))
    endpoints.delete(endpoint.id)
    assert deliveries.settle(attempt, DOWN) is None
    assert deliveries.claim(16) == []


def test_a_test_is_sent_once_and_there_is_one_at_a_time(endpoints: Endpoints, deliveries: Deliveries) -> None:
    endpoint, _ = endpoints.create("x", URL, ALL)
    made = endpoints.test(endpoint.id, EventType.RUN_FAILED)
    with pytest.raises(Conflict) as refusal:
        endpoints.test(endpoint.id, EventType.RUN_FAILED)
    assert refusal.value.code is Code.WEBHOOK_STATE_CONFLICT
    assert deliveries.settle(only(deliveries.claim(16)), DOWN) is None
    assert endpoints.delivery(endpoint.id, made.id).status == "failed"
    assert endpoints.get(endpoint.id).disabled_at is None


def test_bounds(database: Database, endpoints: Endpoints, deliveries: Deliveries, jobs: Jobs, clock: Clock) -> None:
    for number in range(MAX_ENDPOINTS):
        endpoint, _ = endpoints.create(str(number), URL, [EventType.JOB_CANCELLED])
    with pytest.raises(Conflict) as refusal:
        endpoints.create("one more", URL, ALL)
    assert refusal.value.code is Code.WEBHOOK_ENDPOINTS_LIMITED
    end_a_job(jobs)
    for attempt in deliveries.claim(MAX_ENDPOINTS):
        deliveries.settle(attempt, TAKEN)
    assert deliveries.prune() == 0
    clock.advance(KEPT.total_seconds() + 1)
    assert deliveries.prune() == MAX_ENDPOINTS
    assert endpoints.deliveries(endpoint.id) == []

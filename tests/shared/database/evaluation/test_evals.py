"""Evals, runs and their items on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.evaluation.evals import Eval, Evals
from shared.database.evaluation.items import EvalItems, NewItem
from shared.database.evaluation.runs import EvalRuns
from shared.database.files.files import Files
from shared.database.job_states import FINAL, JobState
from shared.database.jobs import Jobs
from shared.database.leases import Lease, Leases
from shared.database.records import Job, Kind
from shared.database.tenancy import Role
from shared.errors import Code, JobFailed, LeaseLost, MensError
from tests.support.builders import claimed, snapshot, submission

SPEC: dict[str, Any] = {"data_source_config": {"type": "custom"}, "testing_criteria": []}


@pytest.fixture
def evals(database: Database) -> Evals:
    return Evals(database)


@pytest.fixture
def made(evals: Evals) -> Eval:
    return evals.create("Tone", {"team": "a"}, SPEC)


@pytest.fixture
def runs(database: Database) -> EvalRuns:
    return EvalRuns(database)


def queue_run(jobs: Jobs, eval_id: str, **changes: Any) -> Job:
    fields = {"kind": Kind.EVALUATE, "eval_id": eval_id, "run_name": "A run", **changes}
    return jobs.submit(submission(**fields))[0]


def started(jobs: Jobs, leases: Leases, eval_id: str) -> Lease:
    lease = leases.claim(queue_run(jobs, eval_id).id, "worker-1")
    assert lease
    return lease


def item(position: int, status: str = "pass") -> NewItem:
    return NewItem.model_validate({"position": position, "status": status, "result": {"item_index": position}})


def code(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(MensError) as caught:
        call(*arguments, **named)
    return str(caught.value.code)


def test_an_eval_is_found_as_it_was_made_and_changed_in_name_and_labels_alone(evals: Evals, made: Eval) -> None:
    assert evals.get(made.id) == made
    assert (made.name, made.labels, made.spec) == ("Tone", {"team": "a"}, SPEC)
    changed = evals.update(made.id, name="Manner", labels=None)
    assert (changed.name, changed.labels, changed.spec) == ("Manner", {"team": "a"}, SPEC)
    assert evals.update(made.id, name=None, labels={}).labels == {}


def test_an_eval_without_a_name_is_named_by_its_id(evals: Evals) -> None:
    made = evals.create("", {}, SPEC)
    assert made.name == made.id


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("order_by", ["created_at", "updated_at"])
def test_pages_list_every_eval_once(evals: Evals, clock: Any, newest_first: bool, order_by: Any) -> None:
    made = []
    for number in range(5):
        made.append(evals.create(f"{number}", {}, SPEC).id)
        if number % 2:
            clock.advance(1)
    clock.advance(1)
    evals.update(made[0], name="changed", labels=None)
    expected = made if order_by == "created_at" else [*made[1:], made[0]]
    seen: list[str] = []
    while True:
        after = seen[-1] if seen else None
        page = evals.list(after=after, limit=2, newest_first=newest_first, order_by=order_by)
        seen += [found.id for found in page[:2]]
        if len(page) <= 2:
            break
    assert seen == (expected[::-1] if newest_first else expected)


def test_another_tenant_sees_no_eval_and_no_run_and_changes_no_shared_one(database: Database, jobs: Jobs) -> None:
    acme, other, shared = (Evals(database, tenant) for tenant in ("acme", "other", "shared"))
    own, common = acme.create("own", {}, SPEC), shared.create("common", {}, SPEC)
    job = queue_run(jobs.of("acme"), own.id)
    assert code(other.get, own.id) == Code.EVAL_NOT_FOUND
    assert [found.id for found in other.list()] == [common.id]
    assert code(other.update, common.id, name="mine", labels=None) == Code.TENANT_FORBIDDEN
    assert code(other.delete, common.id) == Code.TENANT_FORBIDDEN
    assert code(EvalRuns(database, "other").get, own.id, job.id) == Code.EVAL_RUN_NOT_FOUND
    assert EvalRuns(database, "other").list(own.id) == []
    assert code(EvalRuns(database, "other").delete, own.id, job.id) == Code.EVAL_RUN_NOT_FOUND


def test_a_run_is_the_job_that_carries_it_out(jobs: Jobs, leases: Leases, runs: EvalRuns, made: Eval) -> None:
    job = queue_run(jobs, made.id, plan={"items": 3})
    run, found = runs.get(made.id, job.id)
    assert (run.id, run.name, run.plan, found) == (job.id, "A run", {"items": 3}, job)
    assert leases.claim(job.id, "worker-1")
    assert [state.state for _, state in runs.list(made.id, states=[JobState.RUNNING])] == [JobState.RUNNING]
    assert runs.list(made.id, states=FINAL) == []


def test_a_run_of_an_eval_that_was_deleted_meanwhile_is_not_queued(database: Database, jobs: Jobs) -> None:
    assert code(queue_run, jobs, "eval-gone") == Code.EVAL_NOT_FOUND
    assert snapshot(database)["jobs"] == []


def test_items_are_stored_with_the_totals_up_to_them(
    database: Database, jobs: Jobs, leases: Leases, runs: EvalRuns, made: Eval
) -> None:
    lease, items = started(jobs, leases, made.id), EvalItems(database)
    run_id = lease.job.id
    leases.store_items(lease, run_id, [item(4), item(0, "fail")], {"done": 2})
    leases.store_items(lease, run_id, [item(2, "error")], {"done": 3})
    assert items.positions(run_id) == {0, 2, 4}
    assert runs.get(made.id, run_id)[0].totals == {"done": 3}
    assert [found.position for found in items.all(run_id)] == [0, 2, 4]
    assert [found.position for found in items.list(run_id, after=0, limit=1)] == [2, 4]
    assert [found.position for found in items.list(run_id, after=4, newest_first=True)] == [2, 0]
    assert [found.position for found in items.list(run_id, status="fail")] == [0]
    assert items.get(run_id, 4).result == {"item_index": 4}
    assert code(items.get, run_id, 3) == Code.EVAL_ITEM_NOT_FOUND


def test_items_whose_commit_was_not_confirmed_are_stored_once(
    database: Database, jobs: Jobs, leases: Leases, made: Eval
) -> None:
    lease = started(jobs, leases, made.id)
    leases.store_items(lease, lease.job.id, [item(0)], {"done": 1})
    leases.store_items(lease, lease.job.id, [item(0), item(1)], {"done": 2})
    items = EvalItems(database)
    assert (items.positions(lease.job.id), items.totals(lease.job.id)) == ({0, 1}, {"done": 2})


def test_an_attempt_that_lost_its_lease_stores_nothing(
    database: Database, jobs: Jobs, leases: Leases, made: Eval
) -> None:
    stale = started(jobs, leases, made.id)
    leases.release(stale, "a test")
    assert leases.claim(stale.job.id, "worker-2")
    with pytest.raises(LeaseLost):
        leases.store_items(stale, stale.job.id, [item(0)], {"done": 1})
    assert EvalItems(database).positions(stale.job.id) == set()


def test_a_job_of_another_kind_finds_its_run_again(jobs: Jobs, leases: Leases, runs: EvalRuns, made: Eval) -> None:
    lease = claimed(jobs, leases)
    first = leases.open_run(lease, made.id, "gate", {"items": 3})
    assert leases.open_run(lease, made.id, "gate", {"items": 3}) == first
    assert leases.open_run(lease, made.id, "another gate", {}).id != first.id
    assert runs.get(made.id, first.id)[1].id == lease.job.id


def test_a_run_is_deleted_with_its_items_when_it_has_ended(
    database: Database, jobs: Jobs, leases: Leases, runs: EvalRuns, evals: Evals, made: Eval
) -> None:
    lease = started(jobs, leases, made.id)
    leases.store_items(lease, lease.job.id, [item(0)], {})
    assert code(runs.delete, made.id, lease.job.id) == Code.EVAL_IN_USE
    assert code(evals.delete, made.id) == Code.EVAL_IN_USE
    leases.finish(lease, {})
    runs.delete(made.id, lease.job.id)
    assert code(runs.get, made.id, lease.job.id) == Code.EVAL_RUN_NOT_FOUND
    assert snapshot(database)["eval_items"] == []
    assert jobs.get(lease.job.id).state is JobState.SUCCEEDED


def test_an_eval_is_deleted_with_its_runs(
    database: Database, jobs: Jobs, leases: Leases, evals: Evals, made: Eval
) -> None:
    lease = started(jobs, leases, made.id)
    leases.store_items(lease, lease.job.id, [item(0)], {})
    leases.finish(lease, {})
    evals.delete(made.id)
    tables = snapshot(database)
    assert (tables["evals"], tables["eval_runs"], tables["eval_items"]) == ([], [], [])


def test_a_file_that_an_unfinished_run_reads_is_not_deleted(jobs: Jobs, files: Files, made: Eval) -> None:
    file = files.add("rows.jsonl", "evals", 10, "a" * 64)
    job = queue_run(jobs, made.id, extra={"items_file": file.id})
    assert code(files.delete, file.id) == Code.FILE_IN_USE
    jobs.cancel(job.id)
    files.delete(file.id)


def test_the_key_of_an_attempt_ends_with_it_though_its_worker_died(
    jobs: Jobs, leases: Leases, keys: Keys, made: Eval
) -> None:
    lease = started(jobs, leases, made.id)
    key, secret = leases.mint_key(lease, Role.VIEWER)
    assert keys.authenticate(secret) == key
    assert (key.tenant, key.role) == (lease.job.tenant, Role.VIEWER)
    assert keys.revoke_abandoned() == []
    leases.fail(lease, JobFailed(Code.LEASE_EXPIRED, "The worker died.", retryable=True))
    assert keys.revoke_abandoned() == [key.id]
    assert code(keys.authenticate, secret) == Code.KEY_INVALID
    assert keys.revoke_abandoned() == []


def test_the_key_of_an_earlier_attempt_ends_while_a_later_one_runs(
    jobs: Jobs, leases: Leases, keys: Keys, made: Eval
) -> None:
    lease = started(jobs, leases, made.id)
    key, _ = leases.mint_key(lease, Role.VIEWER)
    leases.release(lease, "a test")
    again = leases.claim(lease.job.id, "worker-2")
    assert again
    with pytest.raises(LeaseLost):
        leases.mint_key(lease, Role.VIEWER)
    later, _ = leases.mint_key(again, Role.VIEWER)
    assert keys.revoke_abandoned() == [key.id]
    assert [found.id for found in keys.all()] == [later.id]


def test_eval_of_shared_is_not_deleted_with_another_tenants_runs(
    database: Database, evals: Evals, jobs: Jobs, made: Eval
) -> None:
    theirs, _ = Jobs(database, "acme").submit(submission(kind=Kind.EVALUATE, eval_id=made.id))
    Jobs(database, "acme").cancel(theirs.id)
    with pytest.raises(MensError) as caught:
        evals.delete(made.id)
    assert (caught.value.code, caught.value.details) == (Code.EVAL_IN_USE, {"runs_of_others": 1})
    runs = EvalRuns(database, "acme")
    assert [run.id for run, _ in runs.list(made.id)] == [theirs.id]
    runs.delete(made.id, theirs.id)
    evals.delete(made.id)


def test_no_record_is_kept_of_an_attempts_key(
    database: Database, jobs: Jobs, leases: Leases, keys: Keys, made: Eval
) -> None:
    lease = started(jobs, leases, made.id)
    key, secret = leases.mint_key(lease, Role.VIEWER)
    assert keys.revoke(key.id).revoked_at
    assert code(keys.authenticate, secret) == Code.KEY_INVALID
    assert code(keys.get, key.id, "shared") == Code.KEY_NOT_FOUND
    kept, _ = keys.create("alice")
    keys.revoke(kept.id)
    assert keys.get(kept.id, "shared").revoked_at, "of a key that somebody made it is"

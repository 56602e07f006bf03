"""The retention rules: objects that are needed or young are kept, all others are deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.retention.policy import (
    PastJob,
    Policy,
    PreparedFile,
    StoredAdapter,
    StoredFolder,
    Uses,
    adapter_ends,
    adapters_to_delete,
    models_to_delete,
    prepared_to_remove,
    run_folders_to_remove,
    unreferenced_to_remove,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)

ages = st.integers(0, 40).map(lambda days: NOW - days * DAY)
limits = st.none() | st.integers(0, 40).map(lambda days: days * DAY)
ids = st.sampled_from([f"demo@{letter}" for letter in "abcdefgh"])
adapters = st.lists(
    st.builds(
        StoredAdapter,
        tenant=st.sampled_from(["shared", "acme"]),
        id=ids,
        digest=st.just("d"),
        job_id=st.sampled_from(["job-1", "job-2"]),
        step=st.integers(0, 9),
        final=st.booleans(),
        created_at=ages,
        stopped_at=st.none() | ages,
    ),
    max_size=12,
    unique_by=lambda adapter: (adapter.tenant, adapter.id),
)
uses = st.builds(Uses, needed=st.frozensets(ids, max_size=4), left_at=st.dictionaries(ids, ages, max_size=4))
policies = st.builds(Policy, checkpoints=st.none() | st.integers(0, 3), failed_checkpoints=limits, unaliased=limits)
digests = st.none() | st.sampled_from(["m1", "m2", "m3"])
jobs = st.lists(st.builds(PastJob, id=st.uuids().map(str), finished_at=ages, model=digests), max_size=12)
files = st.lists(st.builds(PreparedFile, name=st.uuids().map(str), bytes=st.integers(0, 100), used_at=ages), max_size=8)
folders = st.lists(
    st.builds(StoredFolder, digest=st.sampled_from("abcde"), written_at=ages),
    max_size=5,
    unique_by=lambda folder: folder.digest,
)


# -- properties -----------------------------------------------------------------------------------------------


@given(adapters, uses, limits)
def test_adapter_is_deleted_when_neither_needed_nor_young(found, used, limit):
    """Needed: by an alias, by its rollback, or by an unfinished job. Young: made, or pointed to, within the limit."""
    deleted = [adapter for adapter, _ in adapters_to_delete(found, used, Policy(unaliased=limit), NOW)]
    for adapter in found:
        last = max(adapter.created_at, used.left_at.get(adapter.id, adapter.created_at))
        is_young = limit is None or NOW - last <= limit
        assert (adapter in deleted) is not (adapter.id in used.needed or is_young)


@given(adapters, uses, policies)
def test_combined_rules_delete_what_each_deletes(found, used, policy):
    alone = [
        Policy(checkpoints=policy.checkpoints),
        Policy(failed_checkpoints=policy.failed_checkpoints),
        Policy(unaliased=policy.unaliased),
    ]
    taken = {adapter for one in alone for adapter, _ in adapters_to_delete(found, used, one, NOW)}
    deleted = adapters_to_delete(found, used, policy, NOW)
    assert {adapter for adapter, _ in deleted} == taken
    assert all(reason for _, reason in deleted)


@given(adapters, uses, st.integers(0, 3))
def test_newest_checkpoints_of_each_job_are_kept(found, used, kept):
    deleted = {adapter for adapter, _ in adapters_to_delete(found, used, Policy(checkpoints=kept), NOW)}
    for tenant, job in {(adapter.tenant, adapter.job_id) for adapter in found}:
        made = [one for one in found if (one.tenant, one.job_id, one.final) == (tenant, job, False)]
        left = [one for one in made if one not in deleted]
        assert len(left) >= min(kept, len(made))
        for one in made:
            if one in deleted:
                assert sum(other.step >= one.step for other in left) >= kept
    assert not any(adapter.final or adapter.id in used.needed for adapter in deleted)


@given(adapters, uses, limits)
def test_only_old_checkpoints_of_jobs_that_made_no_result_are_deleted(found, used, limit):
    deleted = {adapter for adapter, _ in adapters_to_delete(found, used, Policy(failed_checkpoints=limit), NOW)}
    for one in found:
        since = [one.stopped_at or NOW, one.created_at, used.left_at.get(one.id, one.created_at)]
        is_old = limit is not None and all(NOW - moment > limit for moment in since)
        is_free = one.stopped_at is not None and not one.final and one.id not in used.needed
        assert (one in deleted) is (is_old and is_free)


@given(adapters, uses)
def test_nothing_is_deleted_without_a_policy(found, used):
    assert adapters_to_delete(found, used, Policy(), NOW) == []


@given(adapters, uses, policies)
def test_adapter_ends_when_it_is_deleted(found, used, policy):
    ends = dict(adapter_ends(found, used, policy, NOW))
    assert not {adapter.id for adapter in ends} & set(used.needed)
    for later in (NOW, NOW + 20 * DAY, NOW + 41 * DAY):
        deleted = {adapter for adapter, _ in adapters_to_delete(found, used, policy, later)}
        assert {adapter for adapter, end in ends.items() if end < later} <= deleted
        assert all(ends[adapter] <= later for adapter in deleted)


@given(jobs, limits)
def test_only_old_run_folders_are_removed(found, limit):
    deleted = run_folders_to_remove(found, Policy(run_folders=limit), NOW)
    old = [job.id for job in found if limit is not None and NOW - job.finished_at > limit]
    assert deleted == old


@given(jobs, limits, st.frozensets(st.sampled_from(["m1", "m2"])))
def test_merged_model_is_deleted_when_its_last_job_is_old(found, limit, needed):
    deleted = models_to_delete(found, needed, Policy(models=limit), NOW)
    assert len(set(deleted)) == len(deleted)
    for digest in {job.model for job in found if job.model}:
        newest = max(job.finished_at for job in found if job.model == digest)
        old = limit is not None and NOW - newest > limit
        assert (digest in deleted) is (old and digest not in needed)


@given(folders, limits, st.frozensets(st.sampled_from("abc")))
def test_stored_folder_is_removed_when_old_and_unreferenced(found, limit, known):
    deleted = unreferenced_to_remove(found, known, Policy(unreferenced=limit), NOW)
    for folder in found:
        old = limit is not None and NOW - folder.written_at > limit
        assert (folder.digest in deleted) is (old and folder.digest not in known)


@given(files, st.none() | st.integers(0, 400), st.none() | ages)
def test_prepared_data_is_removed_oldest_first_and_not_while_in_use(found, limit, since):
    deleted = prepared_to_remove(found, since, Policy(prepared_bytes=limit))
    left = [file for file in found if file.name not in deleted]
    removed = [file for file in found if file.name in deleted]
    if limit is None:
        assert deleted == []
        return
    assert all(since is None or file.used_at < since for file in removed)
    may_go = [file for file in left if since is None or file.used_at < since]
    assert sum(file.bytes for file in left) <= limit or not may_go
    assert all(one.used_at <= kept.used_at for one in removed for kept in left)
    without_last = sum(file.bytes for file in left) + (
        next(file.bytes for file in found if file.name == deleted[-1]) if deleted else 0
    )
    assert not deleted or without_last > limit  # not one more than has to


# -- examples -----------------------------------------------------------------------------------------------------


def adapter(letter: str, days: int = 30, *, step: int = 1, final: bool = True, tenant: str = "shared") -> StoredAdapter:
    return StoredAdapter(tenant, f"demo@{letter}", "d", "job-1", step, final, NOW - days * DAY)


def reasons(found: list[StoredAdapter], policy: Policy, **used) -> dict[str, str]:
    return {one.id: reason for one, reason in adapters_to_delete(found, Uses(**used), policy, NOW)}


def test_unaliased_adapters_are_deleted_after_their_time():
    found = [adapter("a", 31), adapter("b", 30), adapter("c", 31), adapter("d", 60), adapter("e", 60)]
    left = {"demo@d": NOW - 10 * DAY, "demo@e": NOW - 40 * DAY}
    assert reasons(found, Policy(unaliased=30 * DAY), needed={"demo@c"}, left_at=left) == {
        "demo@a": "no alias since it was made, 2026-01-29",
        "demo@e": "no alias since 2026-01-20",
    }


def test_checkpoints_are_deleted_by_step_and_results_are_kept():
    found = [adapter(letter, 0, step=step, final=False) for letter, step in (("a", 10), ("b", 30), ("c", 20))]
    found.append(adapter("d", 0, step=40))
    assert set(reasons(found, Policy(checkpoints=1))) == {"demo@a", "demo@c"}
    assert set(reasons(found, Policy(checkpoints=1), needed={"demo@a"})) == {"demo@c"}
    assert set(reasons(found, Policy(checkpoints=0))) == {"demo@a", "demo@b", "demo@c"}


@pytest.mark.parametrize(("limit", "deleted"), [(250, []), (249, ["old"]), (150, ["old"]), (149, ["old", "mid"])])
def test_prepared_data_is_removed_until_the_rest_fits(limit, deleted):
    found = [
        PreparedFile("new", 50, NOW),
        PreparedFile("old", 100, NOW - 2 * DAY),
        PreparedFile("mid", 100, NOW - DAY),
    ]
    assert prepared_to_remove(found, None, Policy(prepared_bytes=limit)) == deleted
    assert prepared_to_remove(found, NOW - 3 * DAY, Policy(prepared_bytes=limit)) == []

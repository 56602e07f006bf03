"""The retention rules: nothing that is needed or young ever goes, and what is neither does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.retention import (
    PastJob,
    Policy,
    PreparedFile,
    StoredAdapter,
    StoredFolder,
    Uses,
    adapters_to_delete,
    leftovers_to_remove,
    models_to_delete,
    prepared_to_remove,
    run_folders_to_remove,
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
    ),
    max_size=12,
    unique_by=lambda adapter: (adapter.tenant, adapter.id),
)
uses = st.builds(Uses, needed=st.frozensets(ids, max_size=4), left_at=st.dictionaries(ids, ages, max_size=4))
policies = st.builds(Policy, checkpoints=st.none() | st.integers(0, 3), unaliased=limits)
digests = st.none() | st.sampled_from(["m1", "m2", "m3"])
jobs = st.lists(st.builds(PastJob, id=st.uuids().map(str), finished_at=ages, model=digests), max_size=12)
files = st.lists(st.builds(PreparedFile, name=st.uuids().map(str), bytes=st.integers(0, 100), used_at=ages), max_size=8)
folders = st.lists(
    st.builds(StoredFolder, digest=st.sampled_from("abcde"), written_at=ages),
    max_size=5,
    unique_by=lambda folder: folder.digest,
)


# -- what never goes -----------------------------------------------------------------------------------------------


@given(adapters, uses, limits)
def test_an_adapter_goes_when_it_is_neither_needed_nor_young(found, used, limit):
    """Needed: pointed to, gone back to, or an unfinished job's. Young: made, or pointed to, within the limit."""
    going = [adapter for adapter, _ in adapters_to_delete(found, used, Policy(unaliased=limit), NOW)]
    for adapter in found:
        last = max(adapter.created_at, used.left_at.get(adapter.id, adapter.created_at))
        is_young = limit is None or NOW - last <= limit
        assert (adapter in going) is not (adapter.id in used.needed or is_young)


@given(adapters, uses, policies)
def test_rules_together_take_what_each_takes(found, used, policy):
    alone = [Policy(checkpoints=policy.checkpoints), Policy(unaliased=policy.unaliased)]
    taken = {adapter for one in alone for adapter, _ in adapters_to_delete(found, used, one, NOW)}
    going = adapters_to_delete(found, used, policy, NOW)
    assert {adapter for adapter, _ in going} == taken
    assert all(reason for _, reason in going)


@given(adapters, uses, st.integers(0, 3))
def test_so_many_of_a_jobs_newest_checkpoints_stay(found, used, kept):
    gone = {adapter for adapter, _ in adapters_to_delete(found, used, Policy(checkpoints=kept), NOW)}
    for tenant, job in {(adapter.tenant, adapter.job_id) for adapter in found}:
        made = [one for one in found if (one.tenant, one.job_id, one.final) == (tenant, job, False)]
        left = [one for one in made if one not in gone]
        assert len(left) >= min(kept, len(made))
        for one in made:
            if one in gone:
                assert sum(other.step >= one.step for other in left) >= kept
    assert not any(adapter.final or adapter.id in used.needed for adapter in gone)


@given(adapters, uses)
def test_without_a_policy_nothing_goes(found, used):
    assert adapters_to_delete(found, used, Policy(), NOW) == []


@given(jobs, limits)
def test_no_run_folder_goes_that_is_young(found, limit):
    going = run_folders_to_remove(found, Policy(run_folders=limit), NOW)
    old = [job.id for job in found if limit is not None and NOW - job.finished_at > limit]
    assert going == old


@given(jobs, limits, st.frozensets(st.sampled_from(["m1", "m2"])))
def test_a_merged_model_goes_when_the_last_job_that_made_it_is_old(found, limit, needed):
    going = models_to_delete(found, needed, Policy(models=limit), NOW)
    assert len(set(going)) == len(going)
    for digest in {job.model for job in found if job.model}:
        newest = max(job.finished_at for job in found if job.model == digest)
        old = limit is not None and NOW - newest > limit
        assert (digest in going) is (old and digest not in needed)


@given(folders, limits, st.frozensets(st.sampled_from("abc")))
def test_a_stored_folder_goes_when_it_is_old_and_nobody_has_it(found, limit, known):
    going = leftovers_to_remove(found, known, Policy(leftovers=limit), NOW)
    for folder in found:
        old = limit is not None and NOW - folder.written_at > limit
        assert (folder.digest in going) is (old and folder.digest not in known)


@given(files, st.none() | st.integers(0, 400), st.none() | ages)
def test_prepared_data_goes_oldest_first_and_never_what_a_running_job_may_read(found, limit, since):
    going = prepared_to_remove(found, since, Policy(prepared_bytes=limit))
    left = [file for file in found if file.name not in going]
    removed = [file for file in found if file.name in going]
    if limit is None:
        assert going == []
        return
    assert all(since is None or file.used_at < since for file in removed)
    may_go = [file for file in left if since is None or file.used_at < since]
    assert sum(file.bytes for file in left) <= limit or not may_go
    assert all(gone.used_at <= kept.used_at for gone in removed for kept in left)
    without_last = sum(file.bytes for file in left) + (
        next(file.bytes for file in found if file.name == going[-1]) if going else 0
    )
    assert not going or without_last > limit  # not one more than has to


# -- what does -----------------------------------------------------------------------------------------------------


def adapter(letter: str, days: int = 30, *, step: int = 1, final: bool = True, tenant: str = "shared") -> StoredAdapter:
    return StoredAdapter(tenant, f"demo@{letter}", "d", "job-1", step, final, NOW - days * DAY)


def gone(found: list[StoredAdapter], policy: Policy, **used) -> dict[str, str]:
    return {one.id: reason for one, reason in adapters_to_delete(found, Uses(**used), policy, NOW)}


def test_adapters_that_nobody_points_to_go_after_their_time():
    found = [adapter("a", 31), adapter("b", 30), adapter("c", 31), adapter("d", 60), adapter("e", 60)]
    left = {"demo@d": NOW - 10 * DAY, "demo@e": NOW - 40 * DAY}
    assert gone(found, Policy(unaliased=30 * DAY), needed={"demo@c"}, left_at=left) == {
        "demo@a": "no alias since it was made, 2026-01-29",
        "demo@e": "no alias since 2026-01-20",
    }


def test_checkpoints_go_by_their_step_and_results_stay():
    found = [adapter(letter, 0, step=step, final=False) for letter, step in (("a", 10), ("b", 30), ("c", 20))]
    found.append(adapter("d", 0, step=40))
    assert set(gone(found, Policy(checkpoints=1))) == {"demo@a", "demo@c"}
    assert set(gone(found, Policy(checkpoints=1), needed={"demo@a"})) == {"demo@c"}
    assert set(gone(found, Policy(checkpoints=0))) == {"demo@a", "demo@b", "demo@c"}


@pytest.mark.parametrize(("limit", "going"), [(250, []), (249, ["old"]), (150, ["old"]), (149, ["old", "mid"])])
def test_prepared_data_is_removed_until_the_rest_fits(limit, going):
    found = [
        PreparedFile("new", 50, NOW),
        PreparedFile("old", 100, NOW - 2 * DAY),
        PreparedFile("mid", 100, NOW - DAY),
    ]
    assert prepared_to_remove(found, None, Policy(prepared_bytes=limit)) == going
    assert prepared_to_remove(found, NOW - 3 * DAY, Policy(prepared_bytes=limit)) == []

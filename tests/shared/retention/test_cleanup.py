"""The retention policy on a real database, storage and disk: what it finds, deletes and keeps."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shared.artifacts.manifests import MANIFEST_NAME, MODEL_MANIFEST_NAME
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, save_catalog
from shared.database.connection import Database
from shared.database.deletions import Deletions
from shared.database.leases import Lease
from shared.database.lists.job_series import read_extent
from shared.database.names.aliases import Actor
from shared.database.names.foreign_names import ForeignNames
from shared.database.routing import Routing, StandsFor
from shared.database.tenancy import SHARED
from shared.errors import Code, InvalidRequest, JobFailed
from shared.job_series import CHUNK_STEPS, SeriesChunk
from shared.retention.inventory import MODEL_DELETED
from tests.support.builders import claimed, new_adapter
from tests.support.clock import Clock
from tests.support.retention_home import Home, named

BY = Actor(id="key-1", name="alice")
DAY = timedelta(days=1).total_seconds()


@pytest.fixture
def home(tmp_path: Path, database: Database, clock: Clock) -> Home:
    return Home(tmp_path, database, clock)


def test_nothing_is_deleted_without_a_setting(home: Home) -> None:
    home.train("a", "b", "c", run_bytes=10)
    home.merge("c", "1" * 64)
    home.prepare("data", 1000)
    home.clock.advance(9999 * DAY)
    assert home.keep().find() == home.keep().apply() == []


def test_a_worker_deletes_nothing_but_what_is_on_its_own_disk(home: Home) -> None:
    home.train("a", run_bytes=10)
    home.merge("a", "1" * 64)
    home.prepare("data", 1000)
    home.clock.advance(9999 * DAY)
    keep = home.keep(retain_unaliased_days=1, retain_run_days=1, retain_model_days=1, prepared_bytes=0)
    everything = {finding.what for finding in keep.find()}
    assert {"adapter", "merged model", "run folder", "prepared data"} <= everything
    assert {finding.what for finding in keep.apply_on_this_machine()} == {"run folder", "prepared data"}
    assert {finding.what for finding in keep.find()} == everything - {"run folder", "prepared data"}


def test_adapters_of_aliases_and_their_last_moves_are_kept(home: Home) -> None:
    for letter in "abcdef":
        home.train(letter)
        home.aliases.set("prod", Routing.to(f"demo@{letter * 64}"), BY)
    home.train("0")
    home.clock.advance(31 * DAY)
    keep = home.keep(retain_unaliased_days=30, retain_alias_moves=2)
    # The last two moves: from d to e, and from e to f.
    assert named(keep.find()) == [("adapter", letter) for letter in "0abc"]
    assert home.states("a") == ["published"]
    assert named(keep.apply()) == [("adapter", letter) for letter in "0abc"]
    assert home.states(*"abcdef0") == [*["deleting"] * 3, *["published"] * 3, "deleting"]
    assert [deletion.id[5] for deletion in Deletions(home.database).pending()] == list("0abc")
    assert keep.find() == []


def test_adapters_of_foreign_names_and_of_their_last_moves_are_kept(home: Home) -> None:
    names = ForeignNames(home.database)
    for letter in "abcd":
        home.train(letter)
        stands_for = StandsFor(kind="adapter", name=f"demo@{letter * 64}")
        names.set("ft:gpt-4o:acme::1:ckpt-step-8", stands_for, BY, bases=())
    home.clock.advance(31 * DAY)
    keep = home.keep(retain_unaliased_days=30, retain_alias_moves=1)
    assert named(keep.find()) == [("adapter", "a"), ("adapter", "b")]
    names.delete("ft:gpt-4o:acme::1:ckpt-step-8", BY)
    home.clock.advance(31 * DAY)
    assert named(home.keep(retain_unaliased_days=30, retain_alias_moves=0).find())[-1] == ("adapter", "d")


def test_age_counts_from_the_last_alias(home: Home) -> None:
    home.train("a")
    home.aliases.set("prod", Routing.to(f"demo@{'a' * 64}"), BY)
    home.train("b")
    home.clock.advance(20 * DAY)
    home.aliases.set("prod", Routing.to(f"demo@{'b' * 64}"), BY)
    home.clock.advance(20 * DAY)
    keep = home.keep(retain_unaliased_days=30, retain_alias_moves=0)
    assert keep.find() == []
    home.clock.advance(11 * DAY)
    (found,) = keep.find()
    assert (found.name[5], found.tenant, found.bytes, found.reason) == ("a", SHARED, 200, "no alias since 2026-01-22")


def test_adapters_of_every_tenant_are_deleted(home: Home) -> None:
    home.train("a", tenant="acme")
    home.train("a")
    home.clock.advance(31 * DAY)
    found = home.keep(retain_unaliased_days=30).apply()
    assert sorted(finding.tenant for finding in found) == ["acme", SHARED]


def test_only_the_newest_checkpoints_are_kept(home: Home) -> None:
    home.train("a", "b", "c", "d")
    home.aliases.set("early", Routing.to(f"demo@{'a' * 64}"), BY)
    assert named(home.keep(retain_checkpoints=1).apply()) == [("checkpoint", "b")]
    assert home.states(*"abcd") == ["published", "deleting", "published", "published"]


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_checkpoints_of_a_job_without_a_result_are_deleted_after_a_month(home: Home, how: str) -> None:
    home.train("e", "f")
    lease = claimed(home.jobs, home.leases)
    for step, letter in enumerate("abcd"):
        home.store("adapters", letter * 64, MANIFEST_NAME)
        made = new_adapter(f"demo@{letter * 64}", digest=letter * 64, step=step, final=False)
        home.leases.register(lease, made)
    home.clock.advance(40 * DAY)
    assert home.keep().find() == [], "the job has not ended"
    ended = JobFailed(Code.TRAINER_CRASHED, "no", remedy="") if how == "failed" else None
    home.leases.fail(lease, ended) if ended else home.leases.stop(lease)
    home.aliases.set("early", Routing.to(f"demo@{'a' * 64}"), BY)
    home.aliases.set("late", Routing.to(f"demo@{'b' * 64}"), BY)
    home.clock.advance(10 * DAY)
    home.aliases.set("late", Routing.to(f"demo@{'e' * 64}"), BY)
    keep = home.keep(retain_alias_moves=0)
    home.clock.advance(20 * DAY)
    assert keep.find() == []
    home.clock.advance(DAY)
    assert named(keep.find()) == [("checkpoint", "c"), ("checkpoint", "d")]
    assert home.keep(retain_failed_checkpoint_days=32).find() == []
    assert keep.find()[0].reason == "its job failed or was cancelled; without an alias since 2026-02-11"
    home.clock.advance(10 * DAY)
    assert named(keep.apply()) == [("checkpoint", letter) for letter in "bcd"]
    assert home.states(*"abcdef") == ["published", *["deleting"] * 3, "published", "published"]


def test_adapters_of_unfinished_jobs_are_kept(home: Home) -> None:
    home.train("a", "b")
    merging = home.merging("a")
    storing = claimed(home.jobs, home.leases)
    home.leases.keep_adapters(storing, ["b" * 64])
    home.clock.advance(31 * DAY)
    keep = home.keep(retain_unaliased_days=30, retain_checkpoints=0)
    assert keep.find() == []
    home.leases.stop(merging)
    home.leases.stop(storing)
    assert named(keep.find()) == [("checkpoint", "a"), ("adapter", "b")]


def test_adapter_aliased_after_it_was_found_is_kept(home: Home) -> None:
    home.train("a")
    home.train("b")
    home.clock.advance(31 * DAY)
    keep = home.keep(retain_unaliased_days=30)
    found = keep.find()
    home.aliases.set("prod", Routing.to(f"demo@{'a' * 64}"), BY)
    assert [keep.remove(finding) for finding in found] == [False, True]
    assert home.states("a", "b") == ["published", "deleting"]


def test_run_folders_of_finished_jobs_are_removed(home: Home) -> None:
    old = home.train("a", run_bytes=70)
    open_ = claimed(home.jobs, home.leases).job.id
    home.write(home.folder / "runs" / open_ / "engine.log", 10)
    home.write(home.folder / "runs" / "foreign" / "file", 10)
    home.clock.advance(8 * DAY)
    young = home.train("b", run_bytes=10)
    keep = home.keep(retain_run_days=7)
    (found,) = keep.find()
    assert (found.what, found.name, found.bytes) == ("run folder", old, 70)
    assert keep.apply() == [found]
    assert sorted(path.name for path in (home.folder / "runs").iterdir()) == sorted([open_, young, "foreign"])
    assert keep.find() == []


def test_logs_of_jobs_go_with_their_run_folders(home: Home) -> None:
    old, open_ = (claimed(home.jobs, home.leases) for _ in range(2))
    for lease in (old, open_):
        home.leases.keep_log(lease, "log")
    home.leases.finish(old, {})
    home.clock.advance(8 * DAY)
    young = claimed(home.jobs, home.leases)
    home.leases.keep_log(young, "log")
    home.leases.finish(young, {})
    keep = home.keep(retain_run_days=7)
    assert keep.apply_on_this_machine() == []
    (found,) = keep.find()
    assert (found.what, found.name, found.bytes) == ("job log", old.job.id, 3)
    assert keep.apply() == [found]
    assert [home.jobs.log(lease.job.id) is None for lease in (old, open_, young)] == [True, False, False]
    assert not keep.remove(found)


def test_series_of_jobs_go_with_their_run_folders(home: Home) -> None:
    def report(lease: Lease) -> None:
        chunks = [SeriesChunk.of(name, 0, [1.0] * CHUNK_STEPS) for name in ("train_loss", "valid_loss")]
        home.leases.report(lease, events=[], series=chunks)

    old, open_ = (claimed(home.jobs, home.leases) for _ in range(2))
    report(old)
    report(open_)
    home.leases.finish(old, {})
    home.clock.advance(8 * DAY)
    young = claimed(home.jobs, home.leases)
    report(young)
    home.leases.finish(young, {})
    assert home.keep().find() == []
    keep = home.keep(retain_run_days=7)
    assert keep.apply_on_this_machine() == []
    (found,) = keep.find()
    assert (found.what, found.name, found.bytes) == ("job series", old.job.id, 2 * 4 * CHUNK_STEPS)
    assert keep.apply() == [found]
    kept = [read_extent(home.database, lease.job.id).names for lease in (old, open_, young)]
    assert kept == [[], ["train_loss", "valid_loss"], ["train_loss", "valid_loss"]]
    assert not keep.remove(found)


def test_deleted_merged_model_is_recorded_in_its_jobs(home: Home) -> None:
    home.train("a")
    first, second = (home.merge("a", "1" * 64) for _ in range(2))
    home.clock.advance(8 * DAY)
    keep = home.keep(retain_model_days=7)
    (found,) = keep.find()
    assert (found.what, found.name, found.bytes) == ("merged model", "1" * 64, 200)
    assert keep.apply() == [found]
    assert not home.storage.folder("models", "1" * 64).exists()
    for job_id in (first, second):
        job = home.jobs.get(job_id)
        assert job.result[MODEL_DELETED] and job.result["model_digest"] == "1" * 64
        assert (
            home.jobs.recent_events(job_id, limit=1)[0].message
            == "The merged model was deleted by the retention policy."
        )
    assert keep.find() == keep.apply() == []


def test_merged_model_is_kept_while_a_merge_may_make_it_again(home: Home) -> None:
    home.train("a")
    home.merge("a", "1" * 64)
    home.clock.advance(8 * DAY)
    keep = home.keep(retain_model_days=7)
    found = keep.find()
    home.merging("a")
    assert keep.find() == []
    assert [keep.remove(finding) for finding in found] == [False]


def test_age_of_a_merged_model_counts_from_its_last_job(home: Home) -> None:
    home.train("a")
    home.merge("a", "1" * 64)
    home.clock.advance(8 * DAY)
    keep = home.keep(retain_model_days=7)
    home.merge("a", "1" * 64)
    assert keep.find() == []
    home.clock.advance(8 * DAY)
    assert named(keep.apply()) == [("merged model", "1" * 64)]


def test_model_merged_again_after_its_deletion_is_kept_again(home: Home) -> None:
    home.train("a")
    home.merge("a", "1" * 64)
    home.clock.advance(8 * DAY)
    keep = home.keep(retain_model_days=7)
    keep.apply()
    home.merge("a", "1" * 64)
    assert keep.find() == []
    home.clock.advance(8 * DAY)
    assert named(keep.apply()) == [("merged model", "1" * 64)]


def test_merged_model_that_is_a_base_is_kept(home: Home) -> None:
    home.train("a")
    home.merge("a", "1" * 64)
    home.store("models", "2" * 64, MODEL_MANIFEST_NAME)
    keep = home.keep(retain_model_days=7, retain_leftover_days=7)
    home.clock.advance(8 * DAY)
    found = keep.find()
    assert named(found) == [("merged model", "1" * 64), ("leftover model", "2" * 64)]
    sources = [LocalSource(path=f"storage/models/{digit * 64}") for digit in "12"]
    bases = [
        BaseModelEntry(name=f"base-{n}", source=source, digests={"config.json": "0" * 64})
        for n, source in enumerate(sources)
    ]
    save_catalog(home.folder / "catalog.json", Catalog(bases=bases))
    assert keep.find() == []
    assert not any(keep.remove(finding) for finding in found), "it has become one meanwhile"


def test_invalid_catalogue_keeps_models_only(home: Home) -> None:
    home.train("a")
    home.merge("a", "1" * 64)
    home.prepare("one", 100)
    (home.folder / "catalog.json").write_text("broken")
    assert [finding.name for finding in home.keep(prepared_bytes=0).apply()] == ["one"]
    with pytest.raises(InvalidRequest):
        home.keep(retain_model_days=0).apply()


def test_prepared_data_is_bounded_except_for_running_jobs(home: Home) -> None:
    home.prepare("old", 100)
    home.clock.advance(DAY)
    home.prepare("mid", 100)
    home.clock.advance(DAY)
    home.prepare(".half-written.1.ab", 100)
    running = claimed(home.jobs, home.leases)
    home.prepare("running", 100)
    home.clock.advance(DAY)
    home.prepare("newer", 100)
    keep = home.keep(prepared_bytes=150)
    assert [(finding.what, finding.name, finding.bytes) for finding in keep.find()] == [
        ("prepared data", "old", 100),
        ("prepared data", "mid", 100),
    ]
    keep.apply()
    assert home.prepared() == [".half-written.1.ab", "newer", "running"]
    home.leases.finish(running, {})
    assert [finding.name for finding in keep.apply()] == ["running"]


def test_half_removed_folder_of_a_killed_process_is_removed_later(home: Home, monkeypatch: Any) -> None:
    home.prepare("one", 100)
    with monkeypatch.context() as patched:
        patched.setattr("shared.retention.cleanup.shutil.rmtree", lambda *_, **__: None)
        home.keep(prepared_bytes=0).apply()
    assert [name.partition("-")[0] for name in home.prepared()] == [".discarded"]
    home.prepare("two", 100)
    assert [finding.name for finding in home.keep(prepared_bytes=0).apply()] == ["two"]
    assert home.prepared() == []


def test_new_installation_has_nothing_to_delete(home: Home) -> None:
    assert home.keep(retain_run_days=0, retain_model_days=0, prepared_bytes=0, retain_checkpoints=0).apply() == []

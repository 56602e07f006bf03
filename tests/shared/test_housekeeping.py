"""The retention policy on a real database, storage and disk: what is found, what is removed, and what is left."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shared.aliases import Aliases, Mover
from shared.catalog import BaseModelEntry, Catalog, LocalSource, save_catalog
from shared.db import Database
from shared.deletion import Deletions
from shared.errors import InvalidRequest
from shared.housekeeping import Finding, Housekeeping
from shared.inventory import MODEL_DELETED
from shared.job import Kind
from shared.lease import Lease, LeaseLedger
from shared.ledger import Ledger
from shared.manifest import MANIFEST_NAME
from shared.model_manifest import MODEL_MANIFEST_NAME
from shared.registry import Registry
from shared.routing import Routing
from shared.settings import RetentionSettings
from shared.storage import Storage
from shared.tenancy import SHARED
from tests.shared.conftest import Clock
from tests.shared.samples import claimed, new_adapter

BY = Mover(id="key-1", name="alice")
DAY = timedelta(days=1).total_seconds()


class Home:
    """An installation whose clock we move."""

    def __init__(self, folder: Path, database: Database, clock: Clock) -> None:
        self.folder, self.database, self.clock = folder, database, clock
        self.ledger, self.leases = Ledger(database), LeaseLedger(database, 1e9)
        self.storage, self.aliases = Storage(folder / "storage"), Aliases(database)

    def keep(self, **policy: Any) -> Housekeeping:
        return Housekeeping(self.database, RetentionSettings(home=self.folder, **policy))

    def train(self, *letters: str, tenant: str = SHARED, run_bytes: int = 0) -> str:
        """A finished job whose adapters are named by letters; all but the last are its checkpoints."""
        lease = claimed(self.ledger.of(tenant), self.leases)
        made = [
            new_adapter(f"demo@{letter * 64}", digest=letter * 64, step=number, final=letter == letters[-1])
            for number, letter in enumerate(letters)
        ]
        for adapter in made:
            self.store("adapters", adapter.digest, MANIFEST_NAME)
        if run_bytes:
            self.write(self.folder / "runs" / lease.job.id / "attempt-0001" / "engine.log", run_bytes)
        self.leases.finish(lease, {}, adapters=made)
        return lease.job.id

    def merging(self, letter: str) -> Lease:
        """A merge that runs."""
        plan = {"adapter_id": f"demo@{letter * 64}", "adapter_digest": letter * 64}
        return claimed(self.ledger, self.leases, kind=Kind.MERGE, plan=plan)

    def merge(self, letter: str, digest: str) -> str:
        """A merge that is over; the job's id."""
        lease = self.merging(letter)
        self.store("models", digest, MODEL_MANIFEST_NAME)
        self.leases.finish(lease, {"model_digest": digest})
        return lease.job.id

    def store(self, kind: Any, digest: str, manifest: str) -> None:
        made = self.folder / "made"
        for name in ("weights", manifest):
            self.write(made / name, 100)
        for path in self.storage.put_folder(kind, digest, made, ["weights"], manifest).iterdir():
            self.date(path)

    def prepare(self, name: str, size: int) -> None:
        """Encoded data that was used now."""
        self.write(self.folder / "prepared" / name / "ids.bin", size)

    def write(self, path: Path, size: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        self.date(path)

    def date(self, path: Path) -> None:
        """A file was written now."""
        moment = self.clock.now.timestamp()
        os.utime(path, (moment, moment))

    def prepared(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "prepared").iterdir())

    def states(self, *letters: str) -> list[str]:
        registry = Registry(self.database)
        return [registry.adapter(f"demo@{letter * 64}", deleted=True).state for letter in letters]


@pytest.fixture
def home(tmp_path: Path, database: Database, clock: Clock) -> Home:
    return Home(tmp_path, database, clock)


def named(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.what, finding.name.partition("@")[2][:1] or finding.name) for finding in found]


def test_nothing_goes_unless_a_setting_says_so(home: Home) -> None:
    home.train("a", "b", "c", run_bytes=10)
    home.merge("c", "1" * 64)
    home.prepare("data", 1000)
    home.clock.advance(9999 * DAY)
    assert home.keep().find() == home.keep().apply() == []


def test_what_aliases_point_to_or_would_go_back_to_stays(home: Home) -> None:
    for letter in "abcdef":
        home.train(letter)
        home.aliases.set("prod", Routing.to(f"demo@{letter * 64}"), BY)
    home.train("0")
    home.clock.advance(31 * DAY)
    keep = home.keep(retain_unaliased_days=30, retain_alias_moves=2)
    # The last two moves: from d to e, and from e to f.
    assert named(keep.find()) == [("adapter", letter) for letter in "abc0"]
    assert home.states("a") == ["published"]
    assert named(keep.apply()) == [("adapter", letter) for letter in "abc0"]
    assert home.states(*"abcdef0") == [*["deleting"] * 3, *["published"] * 3, "deleting"]
    assert [doomed.id[5] for doomed in Deletions(home.database).pending()] == list("abc0")
    assert keep.find() == []


def test_the_time_counts_from_the_last_alias(home: Home) -> None:
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


def test_each_tenants_own(home: Home) -> None:
    home.train("a", tenant="acme")
    home.train("a")
    home.clock.advance(31 * DAY)
    found = home.keep(retain_unaliased_days=30).apply()
    assert sorted(finding.tenant for finding in found) == ["acme", SHARED]


def test_checkpoints_go_beyond_the_newest(home: Home) -> None:
    home.train("a", "b", "c", "d")
    home.aliases.set("early", Routing.to(f"demo@{'a' * 64}"), BY)
    assert named(home.keep(retain_checkpoints=1).apply()) == [("checkpoint", "b")]
    assert home.states(*"abcd") == ["published", "deleting", "published", "published"]


def test_what_an_unfinished_job_needs_stays(home: Home) -> None:
    home.train("a", "b")
    merging = home.merging("a")
    storing = claimed(home.ledger, home.leases)
    home.leases.keep_adapters(storing, ["b" * 64])
    home.clock.advance(31 * DAY)
    keep = home.keep(retain_unaliased_days=30, retain_checkpoints=0)
    assert keep.find() == []
    home.leases.stop(merging)
    home.leases.stop(storing)
    assert named(keep.find()) == [("checkpoint", "a"), ("adapter", "b")]


def test_what_is_needed_by_the_time_it_is_removed_stays(home: Home) -> None:
    home.train("a")
    home.train("b")
    home.clock.advance(31 * DAY)
    keep = home.keep(retain_unaliased_days=30)
    found = keep.find()
    home.aliases.set("prod", Routing.to(f"demo@{'a' * 64}"), BY)
    assert [keep.remove(finding) for finding in found] == [False, True]
    assert home.states("a", "b") == ["published", "deleting"]


def test_run_folders_of_finished_jobs_only(home: Home) -> None:
    old = home.train("a", run_bytes=70)
    open_ = claimed(home.ledger, home.leases).job.id
    home.write(home.folder / "runs" / open_ / "engine.log", 10)
    home.write(home.folder / "runs" / "somebody-elses" / "file", 10)
    home.clock.advance(8 * DAY)
    young = home.train("b", run_bytes=10)
    keep = home.keep(retain_run_days=7)
    (found,) = keep.find()
    assert (found.what, found.name, found.bytes) == ("run folder", old, 70)
    assert keep.apply() == [found]
    assert sorted(path.name for path in (home.folder / "runs").iterdir()) == sorted([open_, young, "somebody-elses"])
    assert keep.find() == []


def test_merged_models_go_and_their_jobs_say_so(home: Home) -> None:
    home.train("a")
    first, second = (home.merge("a", "1" * 64) for _ in range(2))
    home.clock.advance(8 * DAY)
    keep = home.keep(retain_model_days=7)
    (found,) = keep.find()
    assert (found.what, found.name, found.bytes) == ("merged model", "1" * 64, 200)
    assert keep.apply() == [found]
    assert not home.storage.folder("models", "1" * 64).exists()
    for job_id in (first, second):
        job = home.ledger.get(job_id)
        assert job.result[MODEL_DELETED] and job.result["model_digest"] == "1" * 64
        assert (
            home.ledger.recent_events(job_id, limit=1)[0].message == "The merged model was deleted: its time is over."
        )
    assert keep.find() == keep.apply() == []


def test_a_merged_model_stays_while_a_job_may_make_it_again_or_made_it_lately(home: Home) -> None:
    home.train("a")
    home.merge("a", "1" * 64)
    home.clock.advance(8 * DAY)
    keep = home.keep(retain_model_days=7)
    found = keep.find()
    again = home.merging("a")
    assert keep.find() == []
    assert [keep.remove(finding) for finding in found] == [False]
    home.leases.finish(again, {"model_digest": "1" * 64})
    assert keep.find() == []
    home.clock.advance(8 * DAY)
    assert named(keep.apply()) == [("merged model", "1" * 64)]


def test_a_model_that_was_merged_again_after_it_was_deleted(home: Home) -> None:
    home.train("a")
    home.merge("a", "1" * 64)
    home.clock.advance(8 * DAY)
    keep = home.keep(retain_model_days=7)
    keep.apply()
    home.merge("a", "1" * 64)
    assert keep.find() == []
    home.clock.advance(8 * DAY)
    assert named(keep.apply()) == [("merged model", "1" * 64)]


def test_a_merged_model_that_is_a_base_stays(home: Home) -> None:
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


def test_what_a_failed_job_stored_goes_after_its_time(home: Home) -> None:
    keep = home.keep(retain_leftover_days=2)
    home.train("a")
    running = claimed(home.ledger, home.leases)
    home.leases.keep_adapters(running, ["b" * 64])
    home.store("adapters", "b" * 64, MANIFEST_NAME)
    home.store("adapters", "c" * 64, MANIFEST_NAME)
    home.clock.advance(1 * DAY)
    home.store("adapters", "d" * 64, MANIFEST_NAME)
    assert keep.apply() == []
    home.clock.advance(1.5 * DAY)
    assert [(found.what, found.name[:1], found.bytes) for found in keep.apply()] == [("leftover adapter", "c", 200)]
    assert home.storage.digests("adapters") == ["a" * 64, "b" * 64, "d" * 64]
    home.ledger.cancel(running.job.id)
    home.leases.stop(running)
    assert [found.name[:1] for found in keep.apply()] == ["b"]


def test_what_a_job_is_about_to_store_by_the_time_it_is_removed_stays(home: Home) -> None:
    keep = home.keep(retain_leftover_days=2)
    home.train("a")
    home.merge("a", "9" * 64)
    home.store("adapters", "c" * 64, MANIFEST_NAME)
    home.store("models", "1" * 64, MODEL_MANIFEST_NAME)
    home.clock.advance(3 * DAY)
    found = keep.find()
    home.leases.keep_adapters(claimed(home.ledger, home.leases), ["c" * 64])
    home.merging("a")
    assert [finding.what for finding in found] == ["leftover adapter", "leftover model"]
    assert not any(keep.remove(finding) for finding in found)
    assert keep.find() == [], "nor is any of it found again"


def test_a_storage_of_which_the_database_knows_nothing_is_left_alone(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    for letter in "abc":
        home.store("adapters", letter * 64, MANIFEST_NAME)
    home.clock.advance(30 * DAY)
    assert home.keep(retain_leftover_days=2).apply() == []
    assert "the database knows none of the 3 stored adapters" in caplog.text
    home.train("d")
    assert len(home.keep(retain_leftover_days=2).apply()) == 3


def test_a_catalogue_that_is_broken_keeps_models_and_nothing_else(home: Home) -> None:
    home.train("a")
    home.merge("a", "1" * 64)
    home.prepare("one", 100)
    (home.folder / "catalog.json").write_text("broken")
    assert [finding.name for finding in home.keep(prepared_bytes=0).apply()] == ["one"]
    with pytest.raises(InvalidRequest):
        home.keep(retain_model_days=0).apply()


def test_the_folder_of_a_deleted_adapter_that_was_stored_again_goes(home: Home) -> None:
    home.train("b")
    home.train("a")
    Deletions(home.database).begin(f"demo@{'a' * 64}")
    (doomed,) = Deletions(home.database).pending()
    Deletions(home.database).finish(doomed, lambda: home.storage.discard_folder("adapters", "a" * 64))
    home.store("adapters", "a" * 64, MANIFEST_NAME)
    home.clock.advance(3 * DAY)
    assert [finding.name for finding in home.keep(retain_leftover_days=2).apply()] == ["a" * 64]
    assert home.storage.digests("adapters") == ["b" * 64]


def test_prepared_data_is_bounded_and_a_running_jobs_stays(home: Home) -> None:
    home.prepare("old", 100)
    home.clock.advance(DAY)
    home.prepare("mid", 100)
    home.clock.advance(DAY)
    home.prepare(".half-written.1.ab", 100)
    running = claimed(home.ledger, home.leases)
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


def test_what_a_killed_process_left_half_removed_goes_with_the_next(home: Home, monkeypatch: Any) -> None:
    home.prepare("one", 100)
    with monkeypatch.context() as patched:
        patched.setattr("shared.housekeeping.shutil.rmtree", lambda *_, **__: None)
        home.keep(prepared_bytes=0).apply()
    assert [name.partition("-")[0] for name in home.prepared()] == [".discarded"]
    home.prepare("two", 100)
    assert [finding.name for finding in home.keep(prepared_bytes=0).apply()] == ["two"]
    assert home.prepared() == []


def test_an_installation_that_has_done_nothing_yet(home: Home) -> None:
    assert home.keep(retain_run_days=0, retain_model_days=0, prepared_bytes=0, retain_checkpoints=0).apply() == []

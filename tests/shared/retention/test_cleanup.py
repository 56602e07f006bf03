"""The retention policy on a real database, storage and disk: what is found, what is removed, and what is left."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shared.aliases import Mover
from shared.catalog import BaseModelEntry, Catalog, LocalSource, save_catalog
from shared.db import Database
from shared.deletion import Deletions
from shared.errors import InvalidRequest
from shared.inventory import MODEL_DELETED
from shared.model_manifest import MODEL_MANIFEST_NAME
from shared.routing import Routing
from shared.tenancy import SHARED
from tests.shared.conftest import Clock
from tests.shared.retention_home import Home, named
from tests.shared.samples import claimed

BY = Mover(id="key-1", name="alice")
DAY = timedelta(days=1).total_seconds()


@pytest.fixture
def home(tmp_path: Path, database: Database, clock: Clock) -> Home:
    return Home(tmp_path, database, clock)


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


def test_a_catalogue_that_is_broken_keeps_models_and_nothing_else(home: Home) -> None:
    home.train("a")
    home.merge("a", "1" * 64)
    home.prepare("one", 100)
    (home.folder / "catalog.json").write_text("broken")
    assert [finding.name for finding in home.keep(prepared_bytes=0).apply()] == ["one"]
    with pytest.raises(InvalidRequest):
        home.keep(retain_model_days=0).apply()


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

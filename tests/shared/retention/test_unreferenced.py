"""Unreferenced folders, such as failed jobs leave, on a real database and storage."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from shared.artifacts.manifests import MANIFEST_NAME, MODEL_MANIFEST_NAME
from shared.database.connection import Database
from shared.database.deletions import Deletions
from tests.support.builders import claimed
from tests.support.clock import Clock
from tests.support.retention_home import Home

DAY = timedelta(days=1).total_seconds()


@pytest.fixture
def home(tmp_path: Path, database: Database, clock: Clock) -> Home:
    return Home(tmp_path, database, clock)


def test_folder_of_a_failed_job_is_removed_after_its_time(home: Home) -> None:
    keep = home.keep(retain_leftover_days=2)
    home.train("a")
    running = claimed(home.jobs, home.leases)
    home.leases.keep_adapters(running, ["b" * 64])
    home.store("adapters", "b" * 64, MANIFEST_NAME)
    home.store("adapters", "c" * 64, MANIFEST_NAME)
    home.clock.advance(1 * DAY)
    home.store("adapters", "d" * 64, MANIFEST_NAME)
    assert keep.apply() == []
    home.clock.advance(1.5 * DAY)
    assert [(found.what, found.name[:1], found.bytes) for found in keep.apply()] == [("leftover adapter", "c", 200)]
    assert home.storage.digests("adapters") == ["a" * 64, "b" * 64, "d" * 64]
    home.jobs.cancel(running.job.id)
    home.leases.stop(running)
    assert [found.name[:1] for found in keep.apply()] == ["b"]


def test_folder_reserved_after_it_was_found_is_kept(home: Home) -> None:
    keep = home.keep(retain_leftover_days=2)
    home.train("a")
    home.merge("a", "9" * 64)
    home.store("adapters", "c" * 64, MANIFEST_NAME)
    home.store("models", "1" * 64, MODEL_MANIFEST_NAME)
    home.clock.advance(3 * DAY)
    found = keep.find()
    home.leases.keep_adapters(claimed(home.jobs, home.leases), ["c" * 64])
    home.merging("a")
    assert [finding.what for finding in found] == ["leftover adapter", "leftover model"]
    assert not any(keep.remove(finding) for finding in found)
    assert keep.find() == [], "neither is found again"


def test_storage_unknown_to_the_database_is_not_cleaned(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    for letter in "abc":
        home.store("adapters", letter * 64, MANIFEST_NAME)
    home.clock.advance(30 * DAY)
    assert home.keep(retain_leftover_days=2).apply() == []
    assert "the database does not contain any of the 3 stored adapters" in caplog.text
    home.train("d")
    assert len(home.keep(retain_leftover_days=2).apply()) == 3


def test_folder_stored_again_after_its_deletion_is_removed(home: Home) -> None:
    home.train("b")
    home.train("a")
    Deletions(home.database).begin(f"demo@{'a' * 64}")
    (deletion,) = Deletions(home.database).pending()
    Deletions(home.database).finish(deletion, lambda: home.storage.move_to_trash("adapters", "a" * 64))
    home.store("adapters", "a" * 64, MANIFEST_NAME)
    home.clock.advance(3 * DAY)
    assert [finding.name for finding in home.keep(retain_leftover_days=2).apply()] == ["a" * 64]
    assert home.storage.digests("adapters") == ["b" * 64]

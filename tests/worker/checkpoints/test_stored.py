"""Checkpoints in the storage, from which another worker with its own disk continues."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from shared.artifacts.folder_storage import FolderStorage
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Lease, Leases
from shared.database.records import Kind, Submission
from shared.errors import LeaseLost, Unavailable
from shared.retention import checkpoints as abandoned
from shared.retention.checkpoints import KIND, STORED_CHECKPOINTS, remove_abandoned_checkpoints
from tests.support.waiting import eventually
from worker.checkpoints import stored
from worker.checkpoints.folders import remove_whole
from worker.checkpoints.stored import MANIFEST_NAME, StoredCheckpoints
from worker.run_folder import list_checkpoints

FILES = {"adapter_model.safetensors": b"weights", "trainer_state.json": b"{}"}


def write_checkpoint(run_dir: Path, step: int, extra: bytes = b"") -> Path:
    folder = run_dir / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content + str(step).encode() + extra)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@dataclass
class OneJob:
    """A job, its storage, and workers that share neither disk nor memory."""

    folder: Path
    database: Database
    storage: FolderStorage
    leases: Leases
    job_id: str
    workers: int = 0

    def claim(self) -> StoredCheckpoints:
        """Begin the next attempt, on another machine; return its stored checkpoints."""
        lease = self.leases.claim(self.job_id, "worker")
        assert lease
        return self.of(lease)

    def of(self, lease: Lease, *, store: bool = True) -> StoredCheckpoints:
        self.workers += 1
        run_dir = self.folder / f"machine-{self.workers}" / "run"
        run_dir.mkdir(parents=True)
        return StoredCheckpoints(self.storage, self.leases, lease, run_dir, store=store)

    def take_back(self) -> None:
        """As after the time of a dead worker's lease."""
        with self.database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE jobs SET lease_expires_at = 1")
        self.leases.sweep()
        with self.database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE jobs SET not_before = NULL")

    def named(self) -> dict[str, str]:
        return dict(Jobs(self.database).get(self.job_id).progress.get(STORED_CHECKPOINTS, {}))


@pytest.fixture
def one_job(tmp_path: Path, sqlite_template: Path) -> OneJob:
    shutil.copy(sqlite_template, tmp_path / "mens.db")
    database = Database(f"sqlite:///{tmp_path / 'mens.db'}")
    job = Jobs(database).submit(Submission(kind=Kind.FINETUNE, base_model="b", name="n", contract={}, plan={}))[0]
    return OneJob(tmp_path, database, FolderStorage(tmp_path / "storage"), Leases(database, 60), job.id)


def test_another_machine_continues_from_the_newest_with_those_before_it(one_job: OneJob) -> None:
    first = one_job.claim()
    written = [write_checkpoint(first._run_dir, step) for step in (2, 4)]
    first.store_new()
    one_job.take_back()
    second = one_job.claim()
    resume = second.fetch_newer(None)
    assert resume == second._run_dir / "checkpoints" / "step-00000004"
    fetched = list_checkpoints(second._run_dir)
    assert [contents(folder) for folder in fetched] == [contents(folder) for folder in written]


@pytest.mark.parametrize(("local", "expected"), [(2, "step-00000004"), (4, None), (6, None)])
def test_newer_checkpoint_on_this_disk_is_preferred(one_job: OneJob, local: int, expected: str | None) -> None:
    first = one_job.claim()
    write_checkpoint(first._run_dir, 4)
    first.store_new()
    one_job.take_back()
    second = one_job.claim()
    found = second.fetch_newer(Path(f"step-{local:08d}"))
    assert (found and found.name) == expected


def test_checkpoint_that_the_trainer_removed_is_removed(one_job: OneJob) -> None:
    first = one_job.claim()
    old = write_checkpoint(first._run_dir, 2)
    first.store_new()
    (removed,) = one_job.named().values()
    remove_whole(old)
    write_checkpoint(first._run_dir, 4)
    first.store_new()
    assert set(one_job.named()) == {"step-00000004"}
    assert one_job.storage.digests(KIND) == list(one_job.named().values())
    assert removed not in one_job.storage.digests(KIND)


def test_what_was_stored_or_fetched_is_not_stored_again(one_job: OneJob, monkeypatch: pytest.MonkeyPatch) -> None:
    first = one_job.claim()
    write_checkpoint(first._run_dir, 2)
    first.store_new()
    one_job.take_back()
    second = one_job.claim()
    second.fetch_newer(None)
    monkeypatch.setattr(one_job.storage, "put_folder", lambda *_: pytest.fail("it was stored again"))
    first_named = one_job.named()
    second.store_new()
    assert one_job.named() == first_named


def test_older_checkpoint_is_used_where_the_newest_is_damaged(one_job: OneJob) -> None:
    first = one_job.claim()
    for step in (2, 4):
        write_checkpoint(first._run_dir, step)
    first.store_new()
    folder = one_job.storage.folder(KIND, one_job.named()["step-00000004"])
    (folder / "trainer_state.json").write_bytes(b"other")
    one_job.take_back()
    second = one_job.claim()
    resume = second.fetch_newer(None)
    assert resume
    assert resume.name == "step-00000002"
    assert [path.name for path in list_checkpoints(second._run_dir)] == ["step-00000002"]


def test_job_with_lost_checkpoints_begins_again(one_job: OneJob) -> None:
    first = one_job.claim()
    write_checkpoint(first._run_dir, 2)
    first.store_new()
    shutil.rmtree(one_job.storage.root / KIND)
    one_job.take_back()
    assert one_job.claim().fetch_newer(None) is None


def test_storage_that_does_not_respond_is_not_a_reason_to_begin_again(
    one_job: OneJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = one_job.claim()
    write_checkpoint(first._run_dir, 2)
    first.store_new()
    one_job.take_back()

    def fail(*_: object) -> bytes:
        raise Unavailable("STORAGE_UNAVAILABLE", "away")

    monkeypatch.setattr(one_job.storage, "manifest_bytes", fail)
    with pytest.raises(Unavailable):
        one_job.claim().fetch_newer(None)


def test_attempt_that_lost_its_lease_changes_nothing(one_job: OneJob) -> None:
    first = one_job.claim()
    write_checkpoint(first._run_dir, 2)
    first.store_new()
    one_job.take_back()
    one_job.claim()
    before = one_job.named()
    shutil.rmtree(first._run_dir / "checkpoints")
    write_checkpoint(first._run_dir, 4)
    with pytest.raises(LeaseLost):
        first.store_new()
    assert one_job.named() == before
    assert set(before.values()) <= set(one_job.storage.digests(KIND))


def test_checkpoints_are_stored_while_the_block_runs(one_job: OneJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "POLL_SECONDS", 0.01)
    with one_job.claim() as first:
        write_checkpoint(first._run_dir, 2)
        eventually(one_job.named)


def test_fault_of_the_storage_is_tried_again(one_job: OneJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "POLL_SECONDS", 0.01)
    put, faults = one_job.storage.put_folder, iter([True, True])

    def flaky(*arguments: object) -> None:
        if next(faults, False):
            raise Unavailable("STORAGE_UNAVAILABLE", "away")
        put(*arguments)

    monkeypatch.setattr(one_job.storage, "put_folder", flaky)
    with one_job.claim() as first:
        write_checkpoint(first._run_dir, 2)
        eventually(one_job.named)


def test_last_checkpoint_is_stored_where_the_block_is_left_early(
    one_job: OneJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "POLL_SECONDS", 60)
    first = one_job.claim()
    with pytest.raises(RuntimeError, match="paused"), first:
        write_checkpoint(first._run_dir, 2)
        raise RuntimeError("paused")
    assert set(one_job.named()) == {"step-00000002"}


def test_nothing_is_stored_where_that_is_off(one_job: OneJob) -> None:
    lease = one_job.leases.claim(one_job.job_id, "worker")
    assert lease
    first = one_job.of(lease, store=False)
    with pytest.raises(RuntimeError), first:
        write_checkpoint(first._run_dir, 2)
        raise RuntimeError
    assert one_job.storage.digests(KIND) == []


def test_folder_that_is_being_removed_is_stored_whole_or_not_at_all(
    one_job: OneJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = one_job.claim()
    write_checkpoint(first._run_dir, 4)
    old = write_checkpoint(first._run_dir, 2)
    link: Callable[[Path, Path], None] = stored.link_or_copy

    def linking(source: Path, target: Path) -> None:
        link(source, target)
        if source.parent == old:
            remove_whole(old)

    monkeypatch.setattr(stored, "link_or_copy", linking)
    first.store_new()
    assert set(one_job.named()) == {"step-00000004"}
    assert len(one_job.storage.digests(KIND)) == 1


# -- checkpoints from which no run can continue


def test_checkpoints_of_a_job_that_is_over_are_removed(one_job: OneJob, monkeypatch: pytest.MonkeyPatch) -> None:
    first = one_job.claim()
    write_checkpoint(first._run_dir, 2)
    first.store_new()
    assert remove_abandoned_checkpoints(one_job.database, one_job.storage) == []
    monkeypatch.setattr(abandoned, "YOUNG", timedelta(0))
    assert remove_abandoned_checkpoints(one_job.database, one_job.storage) == [], "the job may be resumed"
    one_job.leases.stop(first._lease)
    assert len(remove_abandoned_checkpoints(one_job.database, one_job.storage)) == 1
    assert one_job.storage.digests(KIND) == []


def test_checkpoint_that_is_about_to_be_named_is_kept(one_job: OneJob, tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text("{}")
    one_job.storage.put_folder(KIND, "0" * 64, tmp_path, [], MANIFEST_NAME)
    assert remove_abandoned_checkpoints(one_job.database, one_job.storage) == []
    assert one_job.storage.digests(KIND) == ["0" * 64]


def test_discarded_checkpoints_are_gone(one_job: OneJob) -> None:
    first = one_job.claim()
    write_checkpoint(first._run_dir, 2)
    first.store_new()
    first.discard()
    assert one_job.storage.digests(KIND) == []

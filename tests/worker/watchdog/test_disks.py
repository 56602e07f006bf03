"""The check of a worker's disks, on real ones: a writable folder, and one of the kernel's that is not writable."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.artifacts.folder_storage import FolderStorage
from shared.errors import Code
from worker.metrics.counters import WorkerMetrics
from worker.watchdog.disks import MIN_FREE_BYTES, DiskCheck

REFUSES_FILES = Path("/sys/mens")


@pytest.fixture
def check(metrics: WorkerMetrics, tmp_path: Path) -> DiskCheck:
    return DiskCheck(tmp_path / "runs", FolderStorage(tmp_path / "storage"), metrics.disk_fault)


@pytest.fixture
def metrics() -> WorkerMetrics:
    return WorkerMetrics()


def shown(metrics: WorkerMetrics, code: Code) -> float | None:
    return metrics.registry.get_sample_value("mens_worker_disk_fault", {"code": str(code)})


def test_sound_disks_pass_and_keep_nothing(check: DiskCheck, metrics: WorkerMetrics, tmp_path: Path) -> None:
    assert check.find_fault() is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert shown(metrics, Code.STORAGE_UNAVAILABLE) is None


@pytest.mark.parametrize("place", ["runs", "storage"])
def test_fault_of_either_place_is_found_and_shown_once(
    check: DiskCheck, metrics: WorkerMetrics, place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    if place == "runs":
        check.runs_dir = REFUSES_FILES
    else:
        check.storage = FolderStorage(REFUSES_FILES)
    for _ in range(3):
        fault = check.find_fault()
        assert fault is not None
        assert fault.code == Code.STORAGE_UNAVAILABLE
    assert shown(metrics, Code.STORAGE_UNAVAILABLE) == 1
    check.runs_dir, check.storage = tmp_path / "runs", FolderStorage(tmp_path / "storage")
    assert check.find_fault() is None
    assert shown(metrics, Code.STORAGE_UNAVAILABLE) is None
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "this worker takes no job",
        "this worker takes jobs again",
    ]
    assert {"runs": "MENS_RUNS_DIR", "storage": "MENS_STORAGE_DIR"}[place] in caplog.records[0].message


def test_full_disk_is_found(check: DiskCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    # What could not be written is written again on closing.
    with suppress(OSError), Path("/dev/full").open("wb") as full:
        monkeypatch.setattr("worker.watchdog.disks.tempfile.NamedTemporaryFile", lambda **_: nullcontext(full))
        fault = check.find_fault()
    assert fault is not None
    assert fault.code == Code.STORAGE_FULL


def test_disk_with_hardly_any_room_is_full(check: DiskCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1 << 40
    # The last one reports no figures.
    for total, free, code in (
        (size, MIN_FREE_BYTES - 1, Code.STORAGE_FULL),
        (size, MIN_FREE_BYTES, None),
        (0, 0, None),
    ):
        usage = SimpleNamespace(total=total, free=free)
        monkeypatch.setattr("worker.watchdog.disks.shutil.disk_usage", lambda _, usage=usage: usage)
        fault = check.find_fault()
        assert (fault and fault.code) == code


def test_waiting_ends_with_the_worker(check: DiskCheck) -> None:
    stopping = threading.Event()
    stopping.set()
    assert check.wait_until_sound(stopping)
    check.runs_dir = REFUSES_FILES
    assert not check.wait_until_sound(stopping)


def test_file_in_the_folders_place_is_a_fault(check: DiskCheck, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check.runs_dir = tmp_path / "file" / "runs"
    fault = check.find_fault()
    assert fault is not None
    assert "Not a directory" in fault.message

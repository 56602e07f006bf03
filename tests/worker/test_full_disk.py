"""A full disk wherever the trainer writes: the attempt fails with its code and leaves no incomplete file that counts,
and the next one continues to the same bytes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

import worker.training.adapter
import worker.training.checkpoint
import worker.training.reporting.report
from shared.artifacts.manifests import MANIFEST_NAME, WEIGHTS_NAME, parse_manifest, verify_adapter
from shared.contract.plan import TrainingRun
from shared.errors import Code
from shared.hashing import digest_file
from tests.support.training_runs import TinyBase
from worker.child_runtime import EXIT_FAILED, STORAGE_EXITS, run_engine
from worker.jobs.finetune import newest_checkpoint
from worker.run_folder import ADAPTER_FOLDER, METRICS_NAME, SUMMARY_NAME, list_checkpoints, read_json

RUN = {"exec": {"epochs": 4, "checkpoint_every": 2}, "adapter": {"dropout": 0.1}}
NO_SPACE = "Error while serializing: I/O error: No space left on device (os error 28)"
FIRST_KIB, MORE_KIB, MOST_KIB = 64, 512, 8192


def result(run_dir: Path) -> list[str]:
    return [digest_file(path) for path in (run_dir / ADAPTER_FOLDER / WEIGHTS_NAME, run_dir / METRICS_NAME)]


def check_what_is_left(run_dir: Path) -> None:
    """Whatever is called a checkpoint is a whole one, and a run that is not over does not say that it is."""
    assert not (run_dir / SUMMARY_NAME).exists()
    for checkpoint in list_checkpoints(run_dir):
        manifest = checkpoint / MANIFEST_NAME
        verify_adapter(checkpoint, parse_manifest(manifest.read_bytes(), digest_file(manifest)))
        assert read_json(checkpoint / "trainer_state.json")
    assert not list((run_dir / "checkpoints").glob(".*")), "its room is needed"


class FullOnce:
    """In place of a function that writes: the n-th call finds no space left on the device."""

    def __init__(self, real: Any, call: int, error: Exception) -> None:
        self._real, self._left, self._error = real, call, error

    def __call__(self, *args: Any, **more: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            raise self._error
        return self._real(*args, **more)


@dataclass
class Whole:
    """A run, and what it comes to where there is room."""

    run: TrainingRun
    result: list[str]


@pytest.fixture(scope="module")
def whole(tiny: TinyBase, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    run = tiny.plan_run(folder, **RUN)
    return Whole(run, result(tiny.train(run, folder / "run")))


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        pytest.param(worker.training.checkpoint, "save_file", 1, id="first checkpoint"),
        pytest.param(worker.training.checkpoint, "save_file", 3, id="a later checkpoint", marks=pytest.mark.long),
        pytest.param(worker.training.adapter, "save_file", 2, id="a checkpoint's adapter", marks=pytest.mark.long),
        pytest.param(worker.training.adapter, "save_file", 6, id="adapter"),
        pytest.param(worker.training.checkpoint, "write_json", 2, id="a checkpoint's state", marks=pytest.mark.long),
        pytest.param(worker.training.reporting.report, "write_json", 1, id="a report"),
        pytest.param(worker.training.reporting.report, "write_json", 3, id="a later report", marks=pytest.mark.long),
    ],
)
def test_attempt_after_one_that_met_a_full_disk_continues(
    tiny, whole: Whole, tmp_path, monkeypatch, module: Any, name: str, call: int
) -> None:
    first, second = tmp_path / "attempt-0001", tmp_path / "attempt-0002"
    first.mkdir()
    error = SafetensorError(NO_SPACE) if name == "save_file" else OSError(28, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(module, name, FullOnce(getattr(module, name), call, error))
        assert run_engine(lambda: tiny.train(whole.run, first), first) == EXIT_FAILED
    told = read_json(first / "error.json")
    assert (told["code"], told["retryable"]) == (Code.STORAGE_FULL, True)
    check_what_is_left(first)
    tiny.train(whole.run, second, resume=newest_checkpoint([first]))
    assert result(second) == whole.result


def test_run_whose_last_checkpoint_finds_no_room_is_complete(tiny, tmp_path, monkeypatch) -> None:
    """The adapter is on the disk by then, and the checkpoint is there for a kill alone."""
    run = tiny.plan_run(tmp_path, exec={"epochs": 1, "checkpoint_every": 1000})
    whole = tiny.train(run, tmp_path / "whole")
    full = FullOnce(worker.training.checkpoint.save_file, 1, SafetensorError(NO_SPACE))
    monkeypatch.setattr(worker.training.checkpoint, "save_file", full)
    run_dir = tmp_path / "attempt-0001"
    run_dir.mkdir()
    assert run_engine(lambda: tiny.train(run, run_dir), run_dir) == 0
    assert full._left <= 0, "it was tried"
    assert result(run_dir) == result(whole)
    assert read_json(run_dir / SUMMARY_NAME)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={FIRST_KIB}k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("nothing may be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.long  # one full place at a time is above
def test_run_on_a_disk_that_is_full_again_and_again_ends_with_the_same_bytes(tiny, whole: Whole, small_disk) -> None:
    """A real one, which gets a little more room after each failure; so it is full at one place after the other."""
    size, runs, resumed = FIRST_KIB, [], []
    while True:
        run_dir = small_disk / f"attempt-{len(runs) + 1:04d}"
        checkpoint = newest_checkpoint(runs)
        code = run_engine(lambda: tiny.train(whole.run, run_dir, resume=checkpoint), run_dir)  # noqa: B023
        if code == 0:
            break
        assert code in (EXIT_FAILED, STORAGE_EXITS[Code.STORAGE_FULL])
        if code == EXIT_FAILED:
            assert read_json(run_dir / "error.json")["code"] == Code.STORAGE_FULL
        check_what_is_left(run_dir)
        runs.append(run_dir)
        resumed.append(checkpoint is not None)
        size += MORE_KIB
        assert size < MOST_KIB
        subprocess.run(["mount", "-o", f"remount,size={size}k", small_disk], check=True)
    assert len(runs) > 3
    assert any(resumed), "it went on from a checkpoint that was written before the disk was full"
    assert result(run_dir) == whole.result

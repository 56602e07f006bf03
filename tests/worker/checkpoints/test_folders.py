"""Checkpoint folders are complete or absent, and the next attempt takes them over, whatever an outdated attempt does
meanwhile.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

import worker.checkpoints.folders
from worker.checkpoints.folders import adopt_checkpoints, appearing_whole
from worker.jobs.finetune import TAKE_OVER_TRIES, take_over_checkpoint
from worker.run_folder import CHECKPOINTS_FOLDER, list_checkpoints


def make_checkpoint(run_dir: Path, step: int) -> Path:
    folder = run_dir / CHECKPOINTS_FOLDER / f"step-{step:08d}"
    folder.mkdir(parents=True)
    for name in ("adapter_model.safetensors", "trainer_state.json"):
        (folder / name).write_text(f"{name} of step {step}")
    return folder


def raising(error: Exception) -> Any:
    def function(*_: object, **__: object) -> None:
        raise error

    return function


def names(run_dir: Path) -> list[str]:
    return [folder.name for folder in list_checkpoints(run_dir)]


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """An attempt with three checkpoints."""
    for step in (2, 4, 6):
        make_checkpoint(tmp_path / "attempt-0001", step)
    return tmp_path / "attempt-0001"


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return tmp_path / "attempt-0002"


@pytest.mark.parametrize("linked", [True, False], ids=["links", "no links"])
def test_adopted_checkpoints_are_those_up_to_the_one_that_is_resumed(
    first: Path, second: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """They take no room of their own, where the file system has links."""
    if not linked:
        monkeypatch.setattr(Path, "hardlink_to", raising(OSError(errno.EXDEV, "another file system")))
    resume = list_checkpoints(first)[1]
    adopted = adopt_checkpoints(resume, second)
    assert names(second) == ["step-00000002", "step-00000004"]
    assert adopted == list_checkpoints(second)[-1]
    for path in resume.iterdir():
        assert (adopted / path.name).read_bytes() == path.read_bytes()
        assert (adopted / path.name).samefile(path) == linked


def test_own_checkpoints_stay_as_they_are(first: Path) -> None:
    newest = list_checkpoints(first)[-1]
    before = {path: path.stat().st_ino for path in newest.iterdir()}
    assert adopt_checkpoints(newest, first) == newest
    assert {path: path.stat().st_ino for path in newest.iterdir()} == before


def test_adoption_that_meets_a_full_disk_leaves_nothing_that_counts(
    first: Path, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = raising(OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(Path, "hardlink_to", full)
    monkeypatch.setattr(worker.checkpoints.folders.shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space") as caught:
        adopt_checkpoints(list_checkpoints(first)[0], second)
    assert caught.value.errno == errno.ENOSPC, "a full disk is known by its number"
    assert list((second / CHECKPOINTS_FOLDER).iterdir()) == []


def test_folder_that_fails_half_way_does_not_exist(tmp_path: Path) -> None:
    def write() -> None:
        with appearing_whole(tmp_path / "whole") as folder:
            (folder / "half").write_text("x")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert list(tmp_path.iterdir()) == []


# -- an attempt that was taken for dead and is not --------------------------------------------------------------------


class StaleAttempt:
    """An attempt that continues while another process reads: each time a file of its run is about to be copied, its
    trainer drops it.
    """

    def __init__(self, run_dir: Path, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run_dir, self._rounds = run_dir, rounds
        real = Path.hardlink_to

        def hardlink_to(target: Path, source: Path) -> None:
            self.go_on()
            real(target, source)

        monkeypatch.setattr(Path, "hardlink_to", hardlink_to)

    def go_on(self) -> None:
        if self._rounds:
            self._rounds -= 1
            for old in list_checkpoints(self._run_dir):
                shutil.rmtree(old)
            make_checkpoint(self._run_dir, 2000 - self._rounds)


@pytest.mark.parametrize("rounds", [1, TAKE_OVER_TRIES - 1])
def test_checkpoint_that_vanishes_while_it_is_taken_is_replaced_by_a_newer_one(
    first: Path, second: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    for old in list_checkpoints(first)[:-1]:
        shutil.rmtree(old)
    StaleAttempt(first, rounds, monkeypatch)
    taken = take_over_checkpoint([first], second)
    assert taken is not None
    assert taken.name == "step-00002000"
    assert (taken / "trainer_state.json").read_text() == "trainer_state.json of step 2000"
    assert names(second) == ["step-00002000"]


def test_attempt_that_is_always_too_late_starts_from_the_beginning(
    first: Path, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StaleAttempt(first, 1000, monkeypatch)
    assert take_over_checkpoint([first], second) is None
    assert names(second) == []


def test_what_is_taken_over_stays_when_the_stale_attempt_removes_its_own(first: Path, second: Path) -> None:
    """The trainer reads it seconds later: it has torch to import first."""
    taken = take_over_checkpoint([first], second)
    shutil.rmtree(first)
    assert taken is not None
    assert (taken / "trainer_state.json").read_text() == "trainer_state.json of step 6"


def test_without_an_earlier_checkpoint_none_is_found(second: Path) -> None:
    assert take_over_checkpoint([], second) is None

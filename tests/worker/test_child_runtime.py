"""Exit codes, signals and error files, as engine and worker have agreed on."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from shared.errors import Code, JobFailed
from worker.child_runtime import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    EXIT_PAUSED,
    STORAGE_EXITS,
    StopRequested,
    StopSignals,
    run_engine,
)


def raising(error: BaseException):
    def work() -> None:
        raise error

    return work


def test_success_is_zero(tmp_path):
    assert run_engine(lambda: None, tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [EXIT_PAUSED, EXIT_CANCELLED])
def test_a_stop_is_no_error(tmp_path, code):
    assert run_engine(raising(StopRequested(code)), tmp_path) == code
    assert list(tmp_path.iterdir()) == []


def test_a_coded_error_is_written(tmp_path, capsys):
    error = JobFailed(Code.LOSS_NOT_FINITE, "It was NaN.", remedy="Lower it.", details={"step": 3})
    assert run_engine(raising(error), tmp_path) == EXIT_FAILED
    assert json.loads((tmp_path / "error.json").read_text()) == error.as_dict()
    assert "LOSS_NOT_FINITE" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB.\nmore"),
        RuntimeError("DefaultCPUAllocator: Out Of Memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        MemoryError("Unable to allocate 2.00 GiB for an array"),
        MemoryError(),
    ],
)
def test_out_of_memory_has_a_code(tmp_path, error):
    assert run_engine(raising(error), tmp_path) == EXIT_FAILED
    error = json.loads((tmp_path / "error.json").read_text())
    assert error["code"] == Code.OUT_OF_MEMORY
    assert "more" not in error["message"]


def test_a_full_disk_has_a_code_and_may_be_tried_again(tmp_path):
    assert run_engine(lambda: Path("/dev/full").write_text("x"), tmp_path) == EXIT_FAILED
    error = json.loads((tmp_path / "error.json").read_text())
    assert (error["code"], error["retryable"]) == (Code.STORAGE_FULL, True)


def test_a_disk_without_room_for_the_error_itself_is_told_by_the_exit_code(tmp_path, capsys):
    (tmp_path / f"error.json.{os.getpid()}.tmp").symlink_to("/dev/full")
    assert run_engine(lambda: Path("/dev/full").write_text("x"), tmp_path) == STORAGE_EXITS[Code.STORAGE_FULL]
    assert "STORAGE_FULL" in capsys.readouterr().err
    assert not (tmp_path / "error.json").exists()


def test_nor_is_room_in_the_log_needed(tmp_path, monkeypatch):
    (tmp_path / f"error.json.{os.getpid()}.tmp").symlink_to("/dev/full")
    log = io.StringIO()
    monkeypatch.setattr(log, "write", lambda _: Path("/dev/full").write_text("x"))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", log)
        assert run_engine(lambda: Path("/dev/full").write_text("x"), tmp_path) == STORAGE_EXITS[Code.STORAGE_FULL]


def test_a_bug_is_not_dressed_up(tmp_path):
    with pytest.raises(ValueError, match="odd"):
        run_engine(raising(ValueError("odd")), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def stop():
    kept = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)}
    yield StopSignals()
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("numbers", "pause", "cancel"),
    [
        ([], False, False),
        ([signal.SIGUSR1], True, False),
        ([signal.SIGINT], True, False),
        ([signal.SIGTERM], False, True),
        ([signal.SIGUSR1, signal.SIGTERM], False, True),
        ([signal.SIGTERM, signal.SIGUSR1], False, True),
    ],
)
def test_signals_are_remembered_and_a_cancel_outranks_a_pause(stop, numbers, pause, cancel):
    for number in numbers:
        os.kill(os.getpid(), number)
    assert (stop.pause_requested, stop.cancel_requested) == (pause, cancel)

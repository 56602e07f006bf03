"""Exit codes, signals and error files, as agreed between trainer and worker."""

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
    EXIT_PEER_LOST,
    PARENT_VARIABLE,
    STORAGE_EXITS,
    PeerLost,
    StopRequested,
    StopSignals,
    run_engine,
)
from worker.run_folder import write_json


class DistError(RuntimeError):
    """In place of torch's class of this name: the worker's own tests load no torch."""


class DistNetworkError(DistError):
    """As torch raises it of a store that does not answer."""


def raising(error: BaseException):
    def work() -> None:
        raise error

    return work


def test_success_is_zero(tmp_path):
    assert run_engine(lambda: None, tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [EXIT_PAUSED, EXIT_CANCELLED])
def test_a_stop_is_not_an_error(tmp_path, code):
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


def test_a_disk_without_room_for_the_error_itself_is_reported_by_the_exit_code(tmp_path, capsys):
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


# -- one of several processes -----------------------------------------------------------------------------------------


@pytest.fixture
def by_hand(monkeypatch):
    """torchrun without the worker's launcher, as docs/runs.md has it."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.delenv(PARENT_VARIABLE, raising=False)


@pytest.fixture
def several(by_hand, monkeypatch):
    monkeypatch.setenv(PARENT_VARIABLE, str(os.getppid()))


LOST = [
    PeerLost("gone"),
    RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4711"),
    DistNetworkError("The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500)."),
    StopRequested(EXIT_CANCELLED),
]


@pytest.mark.parametrize("error", LOST, ids=["peer", "gloo", "store", "terminated by nobody"])
def test_a_lost_peer_has_a_code_and_may_be_tried_again(tmp_path, several, error):
    assert run_engine(raising(error), tmp_path) == EXIT_PEER_LOST
    written = json.loads((tmp_path / "error.json").read_text())
    assert (written["code"], written["retryable"]) == (Code.PEER_LOST, True)
    assert not (tmp_path / "ending.json").exists()


def test_the_process_that_ended_first_is_believed(tmp_path, several):
    write_json(tmp_path / "error.json", {"code": "OUT_OF_MEMORY"})
    assert run_engine(raising(PeerLost("gone")), tmp_path) == EXIT_PEER_LOST
    assert json.loads((tmp_path / "error.json").read_text()) == {"code": "OUT_OF_MEMORY"}


def test_a_cancel_that_was_requested_is_one(tmp_path, several):
    write_json(tmp_path / "stop.json", {"signal": signal.SIGTERM})
    assert run_engine(raising(StopRequested(EXIT_CANCELLED)), tmp_path) == 0
    assert json.loads((tmp_path / "ending.json").read_text()) == {"exit_code": EXIT_CANCELLED}
    assert not (tmp_path / "error.json").exists()


def test_end_by_torchrun_during_a_pause_is_not_a_cancel(tmp_path, several):
    """It ends the others when one of them was killed; no checkpoint was written."""
    write_json(tmp_path / "stop.json", {"signal": signal.SIGUSR1})
    assert run_engine(raising(StopRequested(EXIT_CANCELLED)), tmp_path) == EXIT_PEER_LOST
    assert not (tmp_path / "ending.json").exists()


@pytest.mark.parametrize("code", [EXIT_PAUSED, EXIT_CANCELLED])
def test_stop_does_not_hide_the_failure_of_another_process(tmp_path, several, code):
    write_json(tmp_path / "stop.json", {"signal": signal.SIGTERM})
    write_json(tmp_path / "ending.json", {"exit_code": EXIT_FAILED})
    assert run_engine(raising(StopRequested(code)), tmp_path) == 0
    assert json.loads((tmp_path / "ending.json").read_text()) == {"exit_code": EXIT_FAILED}


def test_run_by_hand_that_is_terminated_is_cancelled(tmp_path, by_hand):
    """No process notes there that a stop was requested."""
    assert run_engine(raising(StopRequested(EXIT_CANCELLED)), tmp_path) == 0
    assert not (tmp_path / "error.json").exists()


def test_run_by_hand_may_lose_a_peer(tmp_path, by_hand):
    assert run_engine(raising(LOST[0]), tmp_path) == EXIT_PEER_LOST
    assert json.loads((tmp_path / "error.json").read_text())["code"] == Code.PEER_LOST


def test_alone_no_peer_is_lost(tmp_path):
    with pytest.raises(RuntimeError, match="by peer"):
        run_engine(raising(LOST[1]), tmp_path)


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

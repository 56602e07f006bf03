"""The protocol between a child process and the worker that starts it: exit codes, signals, and ending together."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from shared.errors import Code, JobFailed, MensError
from shared.host import disk_errors, exit_with_parent
from shared.observability.log_context import adopt_from_environment
from shared.observability.logs import configure_logging
from shared.observability.tracing import traced_child
from worker.run_folder import ENDING_NAME, ERROR_NAME, FIRST_PROCESS_NAME, STOP_NAME, read_json, write_json

EXIT_FAILED = 3
"""The child process failed with a coded error, written to ``error.json``."""
EXIT_PAUSED = 10
"""The trainer wrote a checkpoint and stopped, as requested."""
EXIT_CANCELLED = 11
"""The child process stopped, as requested; nothing more was written."""
EXIT_PEER_LOST = 12
"""One of several processes ended because another process or machine was lost; ``error.json`` has this reason unless a
process recorded a better one.
"""
STORAGE_EXITS = {Code.STORAGE_FULL: 13, Code.STORAGE_UNAVAILABLE: 14}
"""Exit codes for a disk on which even ``error.json`` could not be written."""

PAUSE_SIGNAL = signal.SIGUSR1
CANCEL_SIGNAL = signal.SIGTERM

PARENT_VARIABLE = "MENS_PARENT_PID"

OUT_OF_MEMORY_WORDS = re.compile(
    r"out of memory|can't allocate memory|(?:cublas|cudnn|cusparse|cusolver)_status_(?:alloc_failed|not_initialized)",
    re.IGNORECASE,
)
"""Words in torch's errors when memory is full. CUDA's libraries allocate memory at their first use, outside torch's
allocator; if that fails, they report that they are not initialised.
"""


class StopRequested(Exception):
    """Raised between two steps after the process was asked to stop."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


PEER_LOST_NOTE = "this process could not reach the others"
"""Last log line of a process that ends only because another one did."""
PEER_LOST_WORDS = re.compile(r"gloo/|connection (?:closed|reset) by peer|nccl", re.IGNORECASE)
"""Words in torch's errors when another process does not respond; for some of these errors, torch.distributed raises its
own classes.
"""


class PeerLost(Exception):
    """Raised while processes wait for each other: another process has ended or does not respond."""


class StopSignals:
    """Remembers the signals of the worker, so that the loop can stop between two steps and never inside one."""

    def __init__(self) -> None:
        self._exit_code: int | None = None
        signal.signal(PAUSE_SIGNAL, self._note)
        signal.signal(CANCEL_SIGNAL, self._note)
        signal.signal(signal.SIGINT, self._note)

    @property
    def pause_requested(self) -> bool:
        return self._exit_code == EXIT_PAUSED

    @property
    def cancel_requested(self) -> bool:
        return self._exit_code == EXIT_CANCELLED

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._exit_code != EXIT_CANCELLED:  # a cancel outranks a pause
            self._exit_code = EXIT_CANCELLED if number == CANCEL_SIGNAL else EXIT_PAUSED


def exit_with_worker() -> None:
    """End this child process with the worker that started it (its pid is in ``MENS_PARENT_PID``); do nothing if run by
    hand.
    """
    if parent := os.environ.get(PARENT_VARIABLE):
        exit_with_parent(int(parent))


def log_as_the_worker() -> None:
    """Log JSON lines with the attempt's ids if the worker does; otherwise leave the log to the libraries."""
    if os.environ.get("MENS_LOG_FORMAT") == "json":
        adopt_from_environment()
        configure_logging("json")


def under_torchrun() -> bool:
    """Return whether torchrun started this process, with others of the same run."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def announce(run_dir: Path) -> None:
    """Report to the launcher that the first of several processes can receive signals now."""
    if under_torchrun() and os.environ["RANK"] == "0":
        write_json(run_dir / FIRST_PROCESS_NAME, {"pid": os.getpid()})


def run_engine(work: Callable[[], object], run_dir: Path) -> int:
    """Run a child process's work and turn its end into an exit code and, on failure, an ``error.json``.

    torchrun turns every exit code into 1 and ends the other processes at the first one that is not 0. So under torchrun
    the code is written to ``ending.json``, and a process that stopped as requested exits with 0. torchrun ends
    processes with the same signal as a cancel; if the launcher has not noted a request for one, a process or a machine
    was lost. When run by hand, without the launcher, the signal is always a cancel.
    """
    log_as_the_worker()
    with traced_child(Path(sys.argv[0]).stem):
        code = _run(work, run_dir)
    if not under_torchrun():
        return code
    if code == EXIT_CANCELLED and PARENT_VARIABLE in os.environ and not _is_cancel_noted(run_dir):
        code = _report_lost_peer(run_dir, "it was ended by SIGTERM, which no worker had sent")
    is_stop = code in (EXIT_PAUSED, EXIT_CANCELLED)
    if code not in (0, EXIT_PEER_LOST) and not (is_stop and _has_failed(run_dir)):
        # A full disk must not change the exit code, because the worker also learns from it how the process ended.
        with suppress(OSError):
            write_json(run_dir / ENDING_NAME, {"exit_code": code})
    return 0 if is_stop else code


def _is_cancel_noted(run_dir: Path) -> bool:
    # The exit code does not show it: while a pause is requested, torchrun's own signal also counts as a cancel.
    return (read_json(run_dir / STOP_NAME) or {}).get("signal") == CANCEL_SIGNAL


def _has_failed(run_dir: Path) -> bool:
    """Return whether another process of the run has written that it failed."""
    ending = read_json(run_dir / ENDING_NAME)
    return ending is not None and ending["exit_code"] not in (EXIT_PAUSED, EXIT_CANCELLED)


def _run(work: Callable[[], object], run_dir: Path) -> int:
    try:
        with disk_errors():
            work()
    except StopRequested as stop:
        return stop.exit_code
    except PeerLost as lost:
        return _report_lost_peer(run_dir, str(lost))
    except MensError as error:
        return _fail(run_dir, error)
    except Exception as error:
        # Both arrive as errors of many classes, which only their messages distinguish.
        if is_out_of_memory(error):
            return _fail(run_dir, out_of_memory(str(error)))
        if under_torchrun() and is_peer_lost(error):
            return _report_lost_peer(run_dir, str(error))
        raise
    return 0


def print_error(error: MensError) -> int:
    """Print an error as one line of JSON on stdout, for the command line that runs this program; return the code."""
    print(json.dumps({"kind": type(error).__name__, **error.as_dict()}), flush=True)
    return EXIT_FAILED


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocator ran out of memory on CPU or GPU: torch's errors are recognised by their message,
    others by their type.
    """
    if isinstance(error, MemoryError):
        return True
    return OUT_OF_MEMORY_WORDS.search(str(error)) is not None


def is_peer_lost(error: Exception) -> bool:
    """Return whether processes could not reach each other: torch's errors are recognised by their class or message."""
    if not isinstance(error, RuntimeError):
        return False
    named = any(kind.__name__ == "DistError" for kind in type(error).__mro__)
    return named or PEER_LOST_WORDS.search(str(error)) is not None


def peer_lost() -> JobFailed:
    """Return the error of a run that lost one of its processes or machines."""
    return JobFailed(
        Code.PEER_LOST,
        "One of the processes that train together, or its machine, was lost.",
        remedy=(
            "The run continues from its newest checkpoint; if this repeats, check that machine, its memory and its "
            "network."
        ),
        retryable=True,
    )


def out_of_memory(reason: str) -> JobFailed:
    """Convert an allocator's error into its coded form."""
    return JobFailed(
        Code.OUT_OF_MEMORY,
        f"The device ran out of memory: {(reason.splitlines() or ['no memory is left'])[0]}",
        remedy="Lower exec.seq_len or adapter.rank, or use a device with more memory; a step's micro-batches have been"
        " halved as far as its rows allow.",
    )


def _report_lost_peer(run_dir: Path, reason: str) -> int:
    """Write the error of a lost peer, unless the process that ended first has written its own reason."""
    print(f"{PEER_LOST_NOTE}: {reason}", file=sys.stderr)
    # The exit code reports it too, so the report is not lost if the disk is full.
    with suppress(OSError):
        if not (run_dir / ERROR_NAME).exists():
            write_json(run_dir / ERROR_NAME, peer_lost().as_dict())
    return EXIT_PEER_LOST


def _fail(run_dir: Path, error: MensError) -> int:
    with suppress(OSError):  # the log may be on the same full disk
        print(f"error: {error}", file=sys.stderr, flush=True)
    try:
        write_json(run_dir / ERROR_NAME, error.as_dict())
    except OSError:
        return STORAGE_EXITS.get(Code(error.code), EXIT_FAILED)
    return EXIT_FAILED

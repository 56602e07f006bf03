"""The trainer in several processes: ``python -m worker.torchrun PROCESSES MODULE plan.json run_dir/ [options]``.

torchrun starts, watches and ends them from within this process. This module adds what torchrun lacks, so that to the
worker a run looks the same with one process or eight: signals are passed on to the first process, the exit code is the
engine's own, and no process outlives the worker.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from worker.child_runtime import (
    CANCEL_SIGNAL,
    EXIT_PEER_LOST,
    PARENT_VARIABLE,
    PAUSE_SIGNAL,
    STORAGE_EXITS,
    exit_with_worker,
)
from worker.run_folder import ENDING_NAME, ERROR_NAME, FIRST_PROCESS_NAME, STOP_NAME, read_json, write_json

LOOK_AGAIN_SECONDS = 0.2


def main(argv: Sequence[str]) -> int:
    """Run the module in the given number of processes; return the trainer's exit code (`worker/child_runtime.py`)."""
    processes, module, plan, run_dir, *options = argv
    exit_with_worker()
    os.environ[PARENT_VARIABLE] = str(os.getpid())  # torchrun's processes are children of this one
    folder = Path(run_dir)
    # This start would read the files of an earlier one in this folder as its own.
    for name in (STOP_NAME, ENDING_NAME, ERROR_NAME, FIRST_PROCESS_NAME):
        (folder / name).unlink(missing_ok=True)
    SignalRelay(folder)
    failure = torchrun(processes, ["-m", module, plan, run_dir, *options])
    ending = read_json(folder / ENDING_NAME)
    if ending:
        return int(ending["exit_code"])
    if failure < 0:
        die_by(signal.Signals(-failure))
    return failure


def torchrun(processes: str, command: Sequence[str]) -> int:
    """Run a command under torchrun; return 0, 1, one of `STORAGE_EXITS`, the negative number of the signal that ended a
    process, or `EXIT_PEER_LOST` if each process knows only that another one was lost.

    torchrun ends the others with SIGTERM once one has failed, and with SIGKILL half a minute later.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as run

    logging.disable(logging.ERROR)  # its own output would hide the process's at the end of the log
    try:
        run(["--standalone", f"--nproc-per-node={processes}", "--signals-to-handle=SIGHUP,SIGQUIT", *command])
    except ChildFailedError as failed:
        failures = list(failed.failures.values())
        first = min(failure.timestamp for failure in failures)  # in whole seconds
        codes = [failure.exitcode for failure in failures if failure.timestamp <= first + 1]
        if storage := sorted(set(STORAGE_EXITS.values()).intersection(codes)):
            return storage[0]
        causes = [code for code in codes if code not in (EXIT_PEER_LOST, -signal.SIGTERM)]
        return min([1, *causes]) if causes else EXIT_PEER_LOST
    return 0


class SignalRelay:
    """Passes the worker's signals on to the first process, as soon as it can receive them, and notes in the run folder that a
    stop was requested.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._signal: int | None = None
        for number in (PAUSE_SIGNAL, CANCEL_SIGNAL, signal.SIGINT):
            signal.signal(number, self._note)
        signal.signal(signal.SIGALRM, self._pass_on)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._signal != CANCEL_SIGNAL:  # a cancel outranks a pause
            self._signal = number
        with suppress(OSError):
            write_json(self._run_dir / STOP_NAME, {"signal": self._signal})
        self._pass_on(number, frame)

    def _pass_on(self, _number: int, _frame: FrameType | None) -> None:
        first = read_json(self._run_dir / FIRST_PROCESS_NAME)
        if first is None:
            signal.setitimer(signal.ITIMER_REAL, LOOK_AGAIN_SECONDS)
        elif self._signal is not None:
            try:
                os.kill(first["pid"], self._signal)
            except ProcessLookupError:
                pass  # it has ended, and so will this process


def die_by(number: signal.Signals) -> None:
    """End this process by a signal, so that its parent sees the reason for the trainer's end."""
    # Otherwise the handler of `SignalRelay` would get the signal again.
    if number is not signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

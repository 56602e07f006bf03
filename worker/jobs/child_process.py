"""The trainer (or a program like it) as a child process: starts it in its own process group, follows its output, sends
it signals and interprets its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import IO, Any

from shared.base_models.config import parse_model_config
from shared.base_models.cpu_threads import cpu_threads
from shared.base_models.weights import json_object
from shared.contract.choices import Device
from shared.contract.contracts import FineTuneContract
from shared.errors import Code, JobFailed, MensError
from shared.gpus.usable import find_gpus
from shared.host import allowed_cores, storage_full, storage_unavailable
from shared.observability import log_context, tracing
from worker.child_runtime import (
    CANCEL_SIGNAL,
    EXIT_CANCELLED,
    EXIT_FAILED,
    EXIT_PAUSED,
    EXIT_PEER_LOST,
    PAUSE_SIGNAL,
    PEER_LOST_NOTE,
    STORAGE_EXITS,
    peer_lost,
)
from worker.jobs.child_environment import child_environment
from worker.run_folder import ERROR_NAME, LOG_NAME, PLAN_NAME, TELEMETRY_NAME, read_json, read_log_end

LAUNCHER = "worker.torchrun"
CONFIG_NAME = "config.json"
LOG_TAIL_LINES = 15


class ExitReason(Enum):
    """Ways in which a child process can end without failing."""

    COMPLETE = "complete"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class ChildProcess:
    """One run of ``python -m <module> plan.json run_dir``.

    Args:
        resume: checkpoint to resume from.
        cache: folder of encoded data files.
        threads: CPU threads of all processes together; 0 leaves it to torch.
        processes: number of processes; several are started through `worker/torchrun.py`, whose signals and exit codes
            are the same.
    """

    def __init__(
        self,
        module: str,
        run_dir: Path,
        *,
        resume: Path | None = None,
        cache: Path | None = None,
        threads: int = 0,
        processes: int = 1,
    ) -> None:
        self.run_dir = run_dir
        self._module = module
        self._log = (run_dir / LOG_NAME).open("ab")
        program = [module] if processes == 1 else [LAUNCHER, str(processes), module]
        command = [sys.executable, "-m", *program, str(run_dir / PLAN_NAME), str(run_dir)]
        command += ["--resume", str(resume)] if resume else []
        command += ["--cache", str(cache)] if cache else []
        self._process = subprocess.Popen(
            command,
            # A library that asks a question must get an end of file, and not wait for the worker's terminal.
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={
                **child_environment(os.environ, threads, processes),
                **log_context.to_environment(),
                **tracing.to_environment(),
            },
            # Its own group: Ctrl-C in the worker's terminal does not reach it, and a kill reaches its children too.
            process_group=0,
        )
        self._telemetry: IO[bytes] | None = None
        self._kill_at: float | None = None
        self._sent: signal.Signals | None = None
        self._is_overdue = False

    @property
    def pid(self) -> int:
        """Process id, which is also the process group's."""
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None if the process still runs after that time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def request_stop(self, *, checkpoint: bool, grace_seconds: float) -> None:
        """Signal the process once; after the grace time, :meth:`enforce_stop` kills it."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + grace_seconds
            self._sent = PAUSE_SIGNAL if checkpoint else CANCEL_SIGNAL
            self._process.send_signal(self._sent)

    def enforce_stop(self) -> None:
        """Kill the process if a stop was requested and the grace time is over."""
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            self._is_overdue = True
            self.kill()

    def terminate(self, grace_seconds: float) -> None:
        """End the whole process group: SIGTERM, then SIGKILL for the processes that remain after the grace time."""
        # All of them may have ended meanwhile.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        self.wait(grace_seconds)
        self.kill()

    def kill(self) -> None:
        """Kill the whole process group now."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        # Waited for here, because `ending` reads the exit code, and because a zombie would stay.
        self._process.wait()

    def new_telemetry(self) -> list[dict[str, Any]]:
        """Return the telemetry events written since the last call; an incomplete line waits for the next one."""
        if self._telemetry is None:
            path = self.run_dir / TELEMETRY_NAME
            if not path.exists():
                return []
            self._telemetry = path.open("rb")
        events: list[dict[str, Any]] = []
        while True:
            start = self._telemetry.tell()
            line = self._telemetry.readline()
            # The process is still writing this line.
            if not line.endswith(b"\n"):
                self._telemetry.seek(start)
                return events
            events.append(json.loads(line))

    def close(self) -> None:
        """Kill the remaining processes of the group and release the files."""
        self.kill()
        self._log.close()
        if self._telemetry:
            self._telemetry.close()

    def ending(self) -> ExitReason:
        """Wait for the process to end and return how it ended.

        Raises:
            MensError: the child's own coded error, ``PEER_LOST``, or ``TRAINER_TERMINATED`` / ``TRAINER_KILLED`` /
                ``TRAINER_CRASHED`` with the end of the log.
        """
        code = self._process.wait()
        if code in (0, EXIT_PAUSED):
            return ExitReason.PAUSED if code else ExitReason.COMPLETE
        # A cancel, also by another program; or the signal itself ended the process, which was still starting.
        if self._sent and code in (EXIT_CANCELLED, -self._sent, -CANCEL_SIGNAL):
            return ExitReason.PAUSED if self._sent == PAUSE_SIGNAL else ExitReason.CANCELLED
        raise self._failure(code)

    def _failure(self, code: int) -> MensError:
        error = read_json(self.run_dir / ERROR_NAME)
        if code in (EXIT_FAILED, EXIT_PEER_LOST) and error:
            return JobFailed(error.pop("code"), error.pop("message"), **error)
        if code == STORAGE_EXITS[Code.STORAGE_FULL]:
            return storage_full()
        if code == STORAGE_EXITS[Code.STORAGE_UNAVAILABLE]:
            return storage_unavailable("the trainer could not write to its run folder")
        tail = read_log_end(self.run_dir).splitlines()[-LOG_TAIL_LINES:]
        details = {"exit_code": code, "log_tail": tail}
        if code == EXIT_PEER_LOST:
            return peer_lost()
        if code < 0 or code == EXIT_CANCELLED:
            return self._ended_by_signal(code, details)
        return JobFailed(
            Code.TRAINER_CRASHED,
            f"{self._module} crashed with exit code {code}: {last_message(tail)}.",
            remedy=f"Read the end of its log: `mens jobs logs {self.run_dir.parent.name}`.",
            details=details,
        )

    def _ended_by_signal(self, code: int, details: dict[str, Any]) -> JobFailed:
        if code in (EXIT_CANCELLED, -CANCEL_SIGNAL):
            return JobFailed(
                Code.TRAINER_TERMINATED,
                f"{self._module} was ended by a {CANCEL_SIGNAL.name} that this worker did not send.",
                remedy=(
                    "The run continues from its newest checkpoint; if this repeats, look for what stops processes on "
                    "that machine."
                ),
                details=details,
                retryable=True,
            )
        ending = "did not stop in time and was killed" if self._is_overdue else "was killed"
        return JobFailed(
            Code.TRAINER_KILLED,
            f"{self._module} {ending} by {signal.Signals(-code).name}.",
            remedy="Raise MENS_STOP_GRACE_SECONDS if this happens again."
            if self._is_overdue
            else "If the machine ran out of memory, lower exec.batch_size or exec.seq_len.",
            details=details,
            retryable=True,
        )


def count_processes(requested: int, contract: FineTuneContract) -> int:
    """Return the number of processes of a fine-tuning run: the requested number, but at most one per row of a step.

    Args:
        requested: 0 means one per GPU that the trainer will see.
    """
    gpus = 0 if contract.device.device is Device.CPU else len(find_gpus().gpus)
    return min(requested or max(1, gpus), contract.exec.batch_size * contract.exec.grad_accum)


def trainer_threads(setting: int | None, base: Path) -> int:
    """Return the CPU threads of a program that computes with a base; 0 leaves the number to torch, as on a GPU.

    Args:
        setting: the number in the settings; None: it is chosen by the size of the base.
        base: folder of the base.
    """
    if setting is not None or find_gpus().gpus:
        return setting or 0
    raw = json_object((base / CONFIG_NAME).read_bytes(), CONFIG_NAME, Code.MODEL_CONFIG_INVALID)
    return cpu_threads(parse_model_config(raw), allowed_cores())


def last_message(tail: list[str]) -> str:
    """Return the last log line of a crashed program; with several processes, skip those that only report the loss of a
    peer.
    """
    own = [line for line in tail if not line.startswith(PEER_LOST_NOTE)]
    return (own or tail or ["no output"])[-1]

"""The engine as a child process: started in its own process group, tailed, signalled, and its exit told in codes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path
from typing import IO, Any

from shared.contract import Device, FineTuneContract
from shared.errors import Code, JobFailed, MensError
from worker.process import (
    CANCEL_SIGNAL,
    EXIT_CANCELLED,
    EXIT_FAILED,
    EXIT_PAUSED,
    PARENT_VARIABLE,
    PAUSE_SIGNAL,
    PEER_LOST_NOTE,
)
from worker.rundir import ERROR_NAME, LOG_NAME, PLAN_NAME, TELEMETRY_NAME, read_json

LAUNCHER = "worker.launch"
LOG_TAIL_LINES = 15


class Ending(Enum):
    """How an engine that did not fail has ended."""

    COMPLETE = "complete"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class Engine:
    """One run of ``python -m <module> plan.json run_dir``.

    Args:
        resume: checkpoint to go on from.
        cache: folder of encoded data files.
        threads: CPU threads of the whole engine; 0 leaves it to torch.
        processes: more than one are started through `worker/launch.py`, whose signals and exit codes are the same.
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
        self._log = (run_dir / LOG_NAME).open("ab")
        what = [module] if processes == 1 else [LAUNCHER, str(processes), module]
        command = [sys.executable, "-m", *what, str(run_dir / PLAN_NAME), str(run_dir)]
        command += ["--resume", str(resume)] if resume else []
        command += ["--cache", str(cache)] if cache else []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=_environment(threads, processes),
            process_group=0,
        )
        self._telemetry: IO[bytes] | None = None
        self._kill_at: float | None = None
        self._asked: signal.Signals | None = None

    @property
    def pid(self) -> int:
        """Process id, which is also the process group's."""
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """Exit code, or None when it still runs after that time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def ask_to_stop(self, *, checkpoint: bool, grace_seconds: float) -> None:
        """Signal the engine, once; after the grace time it is killed by :meth:`enforce_stop`."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + grace_seconds
            self._asked = PAUSE_SIGNAL if checkpoint else CANCEL_SIGNAL
            self._process.send_signal(self._asked)

    def enforce_stop(self) -> None:
        """Kill the engine when it was asked to stop and its grace time is over."""
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            self.kill()

    def kill(self) -> None:
        """End the engine's whole process group now."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def new_telemetry(self) -> list[dict[str, Any]]:
        """Telemetry events written since the last call; a line that is not complete yet waits for the next one."""
        if self._telemetry is None:
            path = self.run_dir / TELEMETRY_NAME
            if not path.exists():
                return []
            self._telemetry = path.open("rb")
        events: list[dict[str, Any]] = []
        while True:
            start = self._telemetry.tell()
            line = self._telemetry.readline()
            if not line.endswith(b"\n"):
                self._telemetry.seek(start)
                return events
            events.append(json.loads(line))

    def close(self) -> None:
        """Kill what is left of the process group and release the files."""
        self.kill()
        self._log.close()
        if self._telemetry:
            self._telemetry.close()

    def ending(self) -> Ending:
        """How the ended engine ended.

        Raises:
            MensError: the engine's own coded error, or ``TRAINER_KILLED`` / ``TRAINER_CRASHED`` with the log's end.
        """
        code = self._process.wait()
        endings = {0: Ending.COMPLETE, EXIT_PAUSED: Ending.PAUSED, EXIT_CANCELLED: Ending.CANCELLED}
        if self._asked and code == -self._asked:  # it was still starting and heard nothing yet
            return Ending.PAUSED if self._asked == PAUSE_SIGNAL else Ending.CANCELLED
        if code in endings:
            return endings[code]
        raise self._failure(code)

    def _failure(self, code: int) -> MensError:
        error = read_json(self.run_dir / ERROR_NAME)
        if code == EXIT_FAILED and error:
            return JobFailed(error.pop("code"), error.pop("message"), **error)
        tail = self._log_tail()
        details = {"exit_code": code, "log_tail": tail}
        if code < 0:
            return JobFailed(
                Code.TRAINER_KILLED,
                f"The engine was killed by {signal.Signals(-code).name}.",
                remedy="If the machine ran out of memory, lower exec.batch_size or exec.seq_len.",
                details=details,
                retryable=True,
            )
        return JobFailed(
            Code.TRAINER_CRASHED,
            f"The engine crashed with exit code {code}: {last_words(tail)}.",
            remedy=f"Read {self.run_dir / LOG_NAME} on the worker.",
            details=details,
        )

    def _log_tail(self) -> list[str]:
        text = (self.run_dir / LOG_NAME).read_text(errors="replace")
        return text.splitlines()[-LOG_TAIL_LINES:]


def count_processes(asked: int, contract: FineTuneContract) -> int:
    """Processes of a fine-tune run: as many as were asked for, and never more than a step has rows.

    Args:
        asked: 0 is one for every GPU that the engine will see.
    """
    gpus = 0 if contract.device.device is Device.CPU else visible_gpus()
    return min(asked or max(1, gpus), contract.exec.batch_size * contract.exec.grad_accum)


def last_words(tail: list[str]) -> str:
    """What a crashed engine said last; of several processes, one that did not merely lose another."""
    own = [line for line in tail if not line.startswith(PEER_LOST_NOTE)]
    return (own or tail or ["no output"])[-1]


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """GPUs that CUDA would show, without asking it: a worker's task never loads torch."""
    here = len([path for path in devices.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit()])
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return here
    names = itertools.takewhile(lambda name: name not in ("", "-1"), (name.strip() for name in named.split(",")))
    return min(here, len(list(names)))


def _environment(threads: int, processes: int) -> dict[str, str]:
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), "TOKENIZERS_PARALLELISM": "false"}
    environment["HF_HUB_OFFLINE"] = "1"  # all it needs is here; bitsandbytes would fetch compiled code
    if not environment.keys() & {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}:
        environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # micro-batches differ in size
    if processes > 1:  # each would take all of them
        threads = max(1, (threads or len(os.sched_getaffinity(0))) // processes)
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    return environment

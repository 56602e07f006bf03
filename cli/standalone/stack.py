"""A whole installation on one machine: Valkey, API, worker, control worker and vLLM on loopback, kept running by supervisord.

Each program runs in its own process group, is restarted when it dies, and logs to ``<home>/logs/<program>.log``.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cli.client.connection import CONNECTION_NAME, Connection, saved_connection
from cli.standalone.causes import find_cause
from cli.standalone.environment import broker_password, choose_ports, replica_environments, shared_environment
from cli.standalone.home import api_key, lock_home, write_private
from cli.standalone.memory_shares import GpuSettings, gpu_settings, memory_shares
from cli.standalone.ports import responds, takes_connections
from cli.standalone.programs import (
    DRAIN_SECONDS,
    DRAINED,
    END_SECONDS,
    SERVING,
    metrics_ports,
    programs,
    replica_programs,
    stop_seconds,
    supervisor_config,
    valkey_config,
)
from cli.standalone.progress import StartProgress
from cli.standalone.restarts import RestartLog
from cli.standalone.supervisor import Supervisor
from shared.errors import Code, Conflict
from shared.gpus.usable import find_gpus
from shared.host import allowed_memory
from shared.settings import Settings

SUPERVISORD = "supervisord"
STALL_SECONDS = 300.0
"""A program that neither logs nor computes for this long will not become ready."""
HANG_SECONDS = 30.0
"""Seconds without logging or computing after which a program whose log names a cause will not become ready."""
REPORT_SECONDS = 20.0
MAX_STARTS = 3
"""How often one program may start until all are ready; one that starts more often keeps dying."""
LOG_TAIL_LINES = 30


class StackFailed(Exception):
    """A stack did not start, or one of its programs keeps dying.

    Args:
        message: the program, and the line with the cause.
        remedy: what to do, and the path of the log.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message, self.remedy = message, remedy


@dataclass
class Stack:
    """One installation on this machine.

    Attributes:
        home: folder of the installation's data.
        base: catalogue name of the base model that is served; it must be in the catalogue already.
        more_bases: further bases, each served by its own replica.
        api_port: port of the API; 0 picks a free one.
        environment: extra settings of the programs.
        drain_seconds: how long requests in flight may continue when it stops.
        connection: address and key of the API, once started.
        settings: environment of the programs, once started.
    """

    home: Path
    base: str
    api_port: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    drain_seconds: float = DRAIN_SECONDS
    more_bases: tuple[str, ...] = ()
    connection: Connection = field(init=False)
    settings: dict[str, str] = field(init=False, default_factory=dict)
    _supervisor: Supervisor | None = field(init=False, default=None)
    _lock: int | None = field(init=False, default=None)
    _log_starts: dict[str, int] = field(init=False, default_factory=dict)
    _log_sizes: dict[str, int] = field(init=False, default_factory=dict)
    _restarts: RestartLog = field(init=False)
    _restarted: set[str] = field(init=False, default_factory=set)
    _memory: list[int] = field(init=False, default_factory=list)
    _gpu: GpuSettings = field(init=False, default_factory=GpuSettings)

    def __post_init__(self) -> None:
        self._restarts = RestartLog(self._log(SUPERVISORD))

    def start(self) -> None:
        """Prepare the home folder and start supervisord; see :meth:`wait_until_ready`."""
        from api.migrate import migrate  # slow to import

        self.lock()
        for folder in ("logs", "valkey"):
            (self.home / folder).mkdir(exist_ok=True)
        # Before the programs start: only what they log from here on shows their progress.
        self._log_sizes = self._measure_logs()
        self._log_starts = dict(self._log_sizes)
        self._restarts = RestartLog(self._log(SUPERVISORD))
        environment = self.settings = self._environment()
        # Before any program starts: API and workers expect the tables, and the API key needs them here.
        migrate(Settings(home=self.home).database_url)
        self.connection = Connection(f"http://127.0.0.1:{environment['MENS_API_PORT']}", api_key(self.home))
        self.connection.save(self.home)
        config = self.home / "supervisord.conf"
        self._supervisor = Supervisor(config, environment, self._lock)
        write_private(
            config,
            supervisor_config(
                self.home,
                self._supervisor.socket,
                self.drain_seconds,
                metrics_ports(Settings(home=self.home)),
                self._replicas(),
            ),
        )
        self._supervisor.start()

    def wait_until_ready(
        self,
        seconds: float | None = None,
        stop: threading.Event | None = None,
        report: Callable[[str], None] | None = None,
    ) -> Iterator[str]:
        """Wait for every program, yielding its name as it becomes ready; end early once ``stop`` is set.

        Args:
            seconds: longest wait; None: as long as the programs make progress.
            report: called from time to time with a line about the programs that are awaited.

        Raises:
            StackFailed: a program keeps dying, makes no progress, or is not ready in time; with the cause from its log.
        """
        waiting = {
            name: StartProgress(partial(self._log_size, name), partial(self.pid, name)) for name in self._programs
        }
        starts: dict[str, set[int]] = defaultdict(set)
        began = reported = time.monotonic()
        while waiting and not (stop and stop.is_set()):
            for name in [name for name in waiting if self._is_ready(name)]:
                del waiting[name]
                yield name
            elapsed = time.monotonic() - began
            if waiting and report and began + elapsed - reported >= REPORT_SECONDS:
                reported = began + elapsed
                report(self._describe_waiting(list(waiting), elapsed))
            self._raise_if_stuck(waiting, elapsed, seconds)
            self._raise_if_dying(waiting, starts)
            time.sleep(0.1)

    def _raise_if_stuck(self, waiting: Mapping[str, StartProgress], elapsed: float, seconds: float | None) -> None:
        for name, progress in waiting.items():
            if seconds is not None and elapsed > seconds:
                raise self.failure(name, f"is not ready after {seconds:.0f} s")
            stalled = progress.stalled_seconds()
            # vLLM's server may wait for an engine that has ended.
            if stalled > HANG_SECONDS and self._is_hopeless(name):
                raise self.failure(name, "has failed")
            if stalled > STALL_SECONDS:
                raise self.failure(name, f"has neither logged nor computed for {stalled:.0f} s")

    def _raise_if_dying(self, waiting: Collection[str], starts: dict[str, set[int]]) -> None:
        """Raise if a program keeps dying. ``starts``: the processes of each program so far, updated here."""
        if self._supervisor and self._supervisor.ended():
            raise self.failure(SUPERVISORD, "has ended")
        self.raise_if_failed()
        # supervisord restarts a program indefinitely if it runs for `startsecs` each time before it dies.
        for program in self.processes():
            name = program["name"]
            starts[name].add(int(program["pid"]))
            if len(starts[name] - {0}) > MAX_STARTS:
                raise self.failure(name, "keeps dying")
            if name in waiting and len(starts[name] - {0}) > 1 and self._is_hopeless(name):
                raise self.failure(name, "has ended")

    @property
    def started(self) -> bool:
        """True if :meth:`start` was called, so that there may be programs to stop."""
        return self._supervisor is not None

    def _is_hopeless(self, name: str) -> bool:
        """Return whether another start of a replica will fail like the last one."""
        cause = find_cause(self._new_log(name).decode(errors="replace"))
        return name.startswith(SERVING) and cause is not None and (cause.coded or bool(cause.remedy))

    def _describe_waiting(self, names: list[str], seconds: float) -> str:
        """Describe which programs are awaited, and where the progress of the first one can be seen."""
        return f"waiting for {', '.join(map(self.label, names))} ({seconds:.0f} s); log: {self._log(names[0])}"

    def label(self, program: str) -> str:
        """Return the name of a program; for a replica, with the base that it serves."""
        replicas = dict(zip(replica_programs(len(self.bases)), self.bases, strict=True))
        return f"{program} ({replicas[program]})" if program in replicas else program

    @property
    def bases(self) -> tuple[str, ...]:
        """Every served base, each with its own replica."""
        return (self.base, *self.more_bases)

    def raise_if_failed(self) -> None:
        """Check that supervisord has not given up any program.

        Raises:
            StackFailed: it has given up a program.
        """
        for program in self.processes():
            if program["statename"] == "FATAL":
                raise self.failure(program["name"], "keeps dying")

    def new_events(self) -> list[str]:
        """Return a line for each program that was restarted, or is ready again, since the last call or else the start.

        If supervisord itself has ended, it is restarted here, with all of its programs.

        Raises:
            StackFailed: supervisord has ended again before it was ready.
        """
        restarted = self._restart_supervisor()
        for program, how in self._restarts.read_new():
            self._begin_restart(program)
            restarted.append(f"{program} ended ({how}) and was restarted; log: {self._log(program)}")
        ready = [program for program in sorted(self._restarted) if self._is_ready(program)]
        self._restarted.difference_update(ready)
        self._log_sizes = self._measure_logs()
        return restarted + [f"{program} is ready again" for program in ready]

    def _restart_supervisor(self) -> list[str]:
        """Restart supervisord if it has ended; return the line that reports this."""
        if self._supervisor is None or not (how := self._supervisor.ended()):
            return []
        if SUPERVISORD in self._restarted:
            raise self.failure(SUPERVISORD, "keeps dying")
        for program in (SUPERVISORD, *self._programs):
            self._begin_restart(program)
        self._supervisor.start()
        log = self._log(SUPERVISORD)
        return [f"{SUPERVISORD} ended ({how}) and was started again, with all programs; log: {log}"]

    def _begin_restart(self, program: str) -> None:
        # The log since this restart begins where it ended at the last call of `new_events`, before the restart.
        self._restarted.add(program)
        self._log_starts[program] = self._log_sizes.get(program, 0)

    def processes(self) -> list[dict[str, Any]]:
        """Return the programs as supervisord reports them: name, pid, statename, and more; empty while it does not
        respond.
        """
        return self._supervisor.processes() if self._supervisor else []

    def pid(self, program: str) -> int:
        """Return the process id of a program, which is also its process group's; 0 while it is down."""
        return next((int(process["pid"]) for process in self.processes() if process["name"] == program), 0)

    def failure(self, program: str, what: str) -> StackFailed:
        """Return the error for a program: the cause in its log since this start, otherwise the end of that log."""
        path, log = self._log(program), self._new_log(program).decode(errors="replace")
        who = f"{self.label(program)} {what}"
        if cause := find_cause(log):
            return StackFailed(f"{who}: {cause.line}", f"{cause.remedy} Its log: {path}".strip())
        if "SIGKILL" in (end := self._restarts.last_end(program)):
            remedy = "The system probably ran out of memory: serve fewer bases, or end other programs."
            return StackFailed(f"{who} ({end}).", f"{remedy} Its log: {path}")
        lines = log.splitlines()[-LOG_TAIL_LINES:] or ["(it has logged nothing)"]
        return StackFailed(f"{who}. The end of {path}:\n" + "\n".join(f"  {line}" for line in lines))

    def stop(self, cut: threading.Event | None = None) -> None:
        """Stop every program and supervisord itself.

        Args:
            cut: once it is set, requests in flight get no more time: everything is killed.
        """
        if self._supervisor is not None:
            seconds = stop_seconds(self.drain_seconds)
            self._supervisor.stop(len(self._programs) * seconds, seconds + END_SECONDS, cut)
            # A saved connection would make the next command wait for an API that has stopped.
            if saved_connection(self.home) == self.connection:
                (self.home / CONNECTION_NAME).unlink()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def lock(self) -> None:
        """Lock the home folder for as long as this process or its supervisord lives; a second call changes nothing.

        Raises:
            Conflict: ``ALREADY_RUNNING``: another stack runs there.
        """
        if self._lock is not None:
            return
        try:
            self._lock = lock_home(self.home)
        except BlockingIOError:
            saved = saved_connection(self.home)
            at = f", at {saved.url}" if saved else ""
            raise Conflict(
                Code.ALREADY_RUNNING,
                f"Mens is already running in {self.home}{at}.",
                remedy="Use that installation or stop it first, or set MENS_HOME to another folder.",
            ) from None

    def _is_ready(self, name: str) -> bool:
        if name == SUPERVISORD:
            return bool(self.processes())
        if name.startswith(DRAINED):
            return responds(int(self._ports[name]), "/ready" if name == "api" else "/health")
        if name == "valkey":
            return takes_connections(int(self._ports[name]))
        # The log is checked first: reading a pid costs supervisord and this process two milliseconds of computing, ten
        # times per second.
        return b" ready." in self._new_log(name) and self.pid(name) > 0

    def _new_log(self, name: str) -> bytes:
        """Return the part of a program's log since its start; earlier runs wrote into the same file."""
        path = self._log(name)
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(min(self._log_starts.get(name, 0), _size(path)))
            return file.read()

    def _measure_logs(self) -> dict[str, int]:
        return {name: self._log_size(name) for name in (*self._programs, SUPERVISORD)}

    def _log_size(self, name: str) -> int:
        return _size(self._log(name))

    def _log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def _environment(self) -> dict[str, str]:
        self._ports = choose_ports(self.api_port, replica_programs(len(self.bases)))
        config = valkey_config(self.home, self._ports["valkey"], broker_password(self.home))
        write_private(self.home / "valkey.conf", config)
        settings, gpus = Settings(home=self.home), find_gpus().gpus
        # An operator who names the device of the replicas decides about GPUs too.
        self._gpu = gpu_settings(settings, self.bases, () if "MENS_SERVING_DEVICE" in os.environ else gpus)
        device = os.environ.get("MENS_SERVING_DEVICE") or self._gpu.common.get("MENS_SERVING_DEVICE", "cpu")
        # A GPU has its own memory, and a set value applies to every replica.
        if device == "cpu" and "MENS_SERVING_MEMORY_BYTES" not in os.environ:
            self._memory = memory_shares(settings, self.bases, allowed_memory())
        first = self._memory[0] if self._memory else None
        common = shared_environment(self.home, self.base, self._ports, first, on_gpu=bool(gpus))
        return common | self._gpu.common | self.environment

    def _replicas(self) -> dict[str, dict[str, str]]:
        """Return the own settings of each replica's program."""
        own = replica_environments(self.home, self.bases, self._ports, self._memory)
        for name, settings in zip(own, self._gpu.replicas, strict=False):
            own[name] |= settings
        return own

    @property
    def _programs(self) -> dict[str, str]:
        return programs(len(self.bases))


@contextmanager
def running_stack(stack: Stack) -> Iterator[Stack]:
    """Run a stack, which is ready inside the block and stopped after it."""
    try:
        stack.start()
        for _ in stack.wait_until_ready():
            pass
        yield stack
    finally:
        stack.stop()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

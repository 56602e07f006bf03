"""Everything on one machine: Valkey, API, worker, sweeper and vLLM on loopback, kept running by supervisord.

Each program runs in its own process group, is restarted when it dies, and logs to ``<home>/logs/<program>.log``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import xmlrpc.client
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cli.connection import CONNECTION_NAME, Connection, saved_connection
from cli.home import api_key, lock_home, secret, write_private
from cli.programs import DRAIN_SECONDS, END_SECONDS, PROGRAMS, PROJECT, stop_seconds, supervisor_config, valkey_config
from cli.restarts import Restarts
from shared.settings import Settings

READY_SECONDS = 180.0
MOST_STARTS = 3
"""Of one program, while the others become ready; one more, and it never will."""
STOP_POLL_SECONDS = 0.1
LOG_TAIL_LINES = 30


class StackFailed(Exception):
    """The stack did not start, or a program of it keeps dying; the message holds the end of its log."""


@dataclass
class Stack:
    """One installation on this machine.

    Attributes:
        home: everything is kept here.
        base: catalogue name of the base model that is served; it must be in the catalogue already.
        api_port: port of the front door; 0 picks a free one.
        environment: extra settings of the programs.
        drain_seconds: how long requests under way may go on when it stops.
        connection: address and key of the front door, once started.
        settings: environment of the programs, once started.
    """

    home: Path
    base: str
    api_port: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    drain_seconds: float = DRAIN_SECONDS
    connection: Connection = field(init=False)
    settings: dict[str, str] = field(init=False, default_factory=dict)
    _supervisor: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _socket_dir: Path | None = field(init=False, default=None)
    _lock: int | None = field(init=False, default=None)
    _log_starts: dict[str, int] = field(init=False, default_factory=dict)
    _log_sizes: dict[str, int] = field(init=False, default_factory=dict)
    _restarts: Restarts = field(init=False)
    _restarted: set[str] = field(init=False, default_factory=set)

    def start(self) -> None:
        """Prepare the home folder and start supervisord; see :meth:`wait_until_ready`."""
        from api.migrate import migrate  # slow to import

        self.lock()
        for folder in ("logs", "valkey"):
            (self.home / folder).mkdir(exist_ok=True)
        self._log_sizes = self._measure_logs()
        self._log_starts = dict(self._log_sizes)
        self._restarts = Restarts(self._log("supervisord"))
        self._socket_dir = Path(tempfile.mkdtemp(prefix="mens-"))  # a socket's path may have 107 bytes at most
        environment = self.settings = self._environment()
        migrate(Settings(home=self.home).database_url)
        self.connection = Connection(f"http://127.0.0.1:{environment['MENS_API_PORT']}", api_key(self.home))
        self.connection.save(self.home)
        config = self.home / "supervisord.conf"
        write_private(config, supervisor_config(self.home, self._socket, self.drain_seconds))
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "cli.supervise", str(config)],
            env={**os.environ, **environment, "MENS_PARENT_PID": str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[] if self._lock is None else [self._lock],
        )

    def wait_until_ready(self, seconds: float = READY_SECONDS, stop: threading.Event | None = None) -> Iterator[str]:
        """Wait for every program, yielding its name as it becomes ready; not longer than until ``stop`` is set.

        Raises:
            StackFailed: a program keeps dying or is not ready in time, with the end of its log.
        """
        waiting = dict.fromkeys(PROGRAMS)
        starts: dict[str, set[int]] = defaultdict(set)
        deadline = time.monotonic() + seconds
        while waiting and not (stop and stop.is_set()):
            for name in [name for name in waiting if self._is_ready(name)]:
                del waiting[name]
                yield name
            if waiting and time.monotonic() > deadline:
                raise self.failure(next(iter(waiting)), f"is not ready after {seconds:.0f} s")
            self.refuse_dead_programs()
            self._refuse_restarts(starts)
            time.sleep(0.1)

    def _refuse_restarts(self, starts: dict[str, set[int]]) -> None:
        """A program that ran long enough to count as started, and ended, is started again for ever."""
        for program in self.processes():
            starts[program["name"]].add(int(program["pid"]))
            if len(starts[program["name"]] - {0}) > MOST_STARTS:
                raise self.failure(program["name"], "keeps dying")

    def refuse_dead_programs(self) -> None:
        """Raises:
        StackFailed: supervisord has ended, or gave a program up.
        """
        if self._supervisor is None or self._supervisor.poll() is not None:
            raise self.failure("supervisord", "has ended")
        for program in self.processes():
            if program["statename"] == "FATAL":
                raise self.failure(program["name"], "keeps dying")

    def news(self) -> list[str]:
        """What to tell of programs that were started again, or are ready again, since the last call or else the start."""
        told = []
        for program, how in self._restarts.news():
            self._restarted.add(program)
            self._log_starts[program] = self._log_sizes[program]  # at the last call, before it was started again
            told.append(f"{program} ended ({how}) and was started again; log: {self._log(program)}")
        ready = [program for program in sorted(self._restarted) if self._is_ready(program)]
        self._restarted.difference_update(ready)
        self._log_sizes = self._measure_logs()
        return told + [f"{program} is ready again" for program in ready]

    def processes(self) -> list[dict[str, Any]]:
        """Supervisord's view of the programs: name, pid, statename, and more."""
        try:
            with self._rpc() as rpc:
                programs: Any = rpc.supervisor.getAllProcessInfo()
            return list(programs)
        except (OSError, xmlrpc.client.Error):
            return []

    def _groups(self) -> set[int]:
        return {int(process["pid"]) for process in self.processes() if process["pid"]}

    def pid(self, program: str) -> int:
        """Process id of a program, which is also its process group's; 0 while it is down."""
        return next((int(process["pid"]) for process in self.processes() if process["name"] == program), 0)

    def failure(self, program: str, what: str) -> StackFailed:
        """The error for a program, with the end of its log."""
        path = self._log(program)
        tail = path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:] if path.exists() else ["(no log)"]
        return StackFailed(f"{program} {what}. The end of {path}:\n" + "\n".join(f"  {line}" for line in tail))

    def stop(self, cut: threading.Event | None = None) -> None:
        """Stop every program and supervisord itself.

        Args:
            cut: once it is set, requests under way have no more time: all is killed.
        """
        if self._supervisor is not None:
            groups = self._groups()
            self._supervisor.send_signal(signal.SIGTERM)
            self._wait_for_end(self._supervisor, cut)
            for group in groups | self._groups():
                kill_group(group)
            try:
                # It ends after its last program; one that it has started at the last moment it kills itself by then.
                self._supervisor.wait(stop_seconds(self.drain_seconds) + END_SECONDS)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
                self._supervisor.wait()
            if saved_connection(self.home) == self.connection:  # so that no command waits for what is gone
                (self.home / CONNECTION_NAME).unlink()
        if self._socket_dir:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _wait_for_end(self, supervisor: subprocess.Popen[bytes], cut: threading.Event | None) -> None:
        """Until supervisord has ended, ``cut`` is set or the time is over: it stops one program after the other, and two drain."""
        deadline = time.monotonic() + len(PROGRAMS) * stop_seconds(self.drain_seconds)
        while supervisor.poll() is None and time.monotonic() < deadline and not (cut and cut.is_set()):
            time.sleep(STOP_POLL_SECONDS)

    def lock(self) -> None:
        """Lock the home folder for as long as this process or its supervisord lives; what this stack has locked, it has.

        Raises:
            StackFailed: another stack runs there.
        """
        if self._lock is not None:
            return
        try:
            self._lock = lock_home(self.home)
        except BlockingIOError:
            saved = saved_connection(self.home)
            at = f", at {saved.url}" if saved else ""
            raise StackFailed(f"Mens is already running in {self.home}{at}.") from None

    def _is_ready(self, name: str) -> bool:
        port = self._ports.get(name)
        if name in ("api", "serving"):
            return _answers(f"http://127.0.0.1:{port}/{'ready' if name == 'api' else 'health'}")
        if name == "valkey":
            return _listens(int(port or 0))
        return self.pid(name) > 0 and b" ready." in self._new_log(name)

    def _new_log(self, name: str) -> bytes:
        """What a program has logged since this stack began; earlier ones wrote into the same file."""
        path = self._log(name)
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(min(self._log_starts[name], _size(path)))
            return file.read()

    def _measure_logs(self) -> dict[str, int]:
        return {name: _size(self._log(name)) for name in PROGRAMS}

    def _log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def _environment(self) -> dict[str, str]:
        self._ports = {name: str(_free_port()) for name in ("valkey", "serving")}
        self._ports["api"] = str(self.api_port or _free_port())
        broker_password = secret(self.home, "broker-password")
        write_private(self.home / "valkey.conf", valkey_config(self.home, self._ports["valkey"], broker_password))
        environment = {
            "MENS_HOME": str(self.home),
            "MENS_BROKER_URL": f"redis://:{broker_password}@127.0.0.1:{self._ports['valkey']}/0",
            "MENS_API_PORT": self._ports["api"],
            "MENS_SERVING_PORT": self._ports["serving"],
            "MENS_SERVING_URLS": f"http://127.0.0.1:{self._ports['serving']}",
            "MENS_SERVING_KEY": secret(self.home, "serving-key"),
            "MENS_SERVING_BASE": self.base,
            "PYTHONPATH": str(PROJECT),
            "PYTHONUNBUFFERED": "1",
        }
        if not _has_accelerator():  # small CPU models are many times slower with competing threads
            environment |= {"OMP_NUM_THREADS": "1", "MENS_TRAINER_THREADS": "1"}
        return environment | self.environment

    @property
    def _socket(self) -> Path:
        return (self._socket_dir or self.home) / "supervisor.sock"

    def _rpc(self) -> xmlrpc.client.ServerProxy:
        from supervisor.xmlrpc import SupervisorTransport

        transport = SupervisorTransport(serverurl=f"unix://{self._socket}")
        return xmlrpc.client.ServerProxy("http://localhost", transport=transport)


@contextmanager
def running_stack(stack: Stack) -> Iterator[Stack]:
    """A stack that is ready inside the block and stopped after it."""
    try:
        stack.start()
        for _ in stack.wait_until_ready():
            pass
        yield stack
    finally:
        stack.stop()


def kill_group(group: int) -> None:
    """Kill a process group that may be gone already."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def _has_accelerator() -> bool:
    return shutil.which("nvidia-smi") is not None

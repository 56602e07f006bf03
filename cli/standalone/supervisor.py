"""supervisord as a child process: it runs the programs of an installation, and none of them outlives it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xmlrpc.client
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STOP_POLL_SECONDS = 0.1


class Supervisor:
    """supervisord, its socket, and the state of its programs.

    Args:
        config: its configuration file, which is written before :meth:`start`.
        environment: variables of its programs, in addition to those of this process.
        lock: descriptor of the home folder's lock, which it inherits: as long as its programs run, no other stack may
            use the folder. None: no lock.
    """

    def __init__(self, config: Path, environment: Mapping[str, str], lock: int | None) -> None:
        self._config, self._environment, self._lock = config, environment, lock
        # Not in the home folder: the path of a Unix socket may have 107 bytes at most.
        self._folder = Path(tempfile.mkdtemp(prefix="mens-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    @property
    def socket(self) -> Path:
        """The Unix socket on which supervisord listens."""
        return self._folder / "supervisor.sock"

    def start(self) -> None:
        """Start supervisord, for the first time or again after it has ended; its remaining programs are killed first."""
        self._kill_programs()
        # In a separate session, because Ctrl-C in the terminal must reach this process only, which then stops the
        # programs in order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cli.standalone.supervise", str(self._config)],
            env={**os.environ, **self._environment, "MENS_PARENT_PID": str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[] if self._lock is None else [self._lock],
        )

    def ended(self) -> str | None:
        """End of supervisord in words, such as "terminated by SIGKILL"; None while it runs."""
        code = self._process.poll() if self._process else None
        if code is None:
            return None
        return f"terminated by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def processes(self) -> list[dict[str, Any]]:
        """Return the programs as supervisord reports them: name, pid, statename, and more; empty while it does not
        respond.
        """
        from supervisor.xmlrpc import SupervisorTransport

        transport = SupervisorTransport(serverurl=f"unix://{self.socket}")
        try:
            with xmlrpc.client.ServerProxy("http://localhost", transport=transport) as rpc:
                programs: Any = rpc.supervisor.getAllProcessInfo()
        except (OSError, xmlrpc.client.Error):
            return []
        self._groups = {int(program["pid"]) for program in programs if program["pid"]}
        return list(programs)

    def stop(self, seconds: float, end_seconds: float, cut: threading.Event | None = None) -> None:
        """Stop every program and supervisord itself.

        Args:
            seconds: time for all programs to end on their own, one after the other.
            end_seconds: time for supervisord to end after its last program. It kills a program that it started at the
                last moment itself within this time.
            cut: once it is set, the programs get no more time.
        """
        if self._process is not None:
            # Notes the groups while it still responds.
            self.processes()
            self._process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + seconds
            while self._process.poll() is None and time.monotonic() < deadline and not (cut and cut.is_set()):
                time.sleep(STOP_POLL_SECONDS)
            self._kill_programs()
            # Again, for programs that it has restarted meanwhile.
            if self.processes():
                self._kill_programs()
            try:
                self._process.wait(end_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill_programs(self) -> None:
        """Kill the process groups that existed when supervisord last responded."""
        for group in self._groups:
            kill_group(group)


def kill_group(group: int) -> None:
    """Kill a process group, if it still exists."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass

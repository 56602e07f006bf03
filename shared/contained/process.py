"""Runs a child process in its own process group, with or without namespaces: starts it, reads from it within a time
limit, and ends it with all processes that it started.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

EXIT_SECONDS = 5.0
"""Time that killed processes may take to end."""
_READ_BYTES = 65_536

Wrap = Callable[[Sequence[str], int], list[str]]
"""Command and descriptor → a command line that runs it in namespaces and writes ``{"child-pid": …}`` to the descriptor."""


class ContainedProcess:
    """A running child process. Ctrl-C in a terminal does not reach it.

    Args:
        command: program and arguments.
        environment: all its variables; None: this process's.
        wrap: makes the command run in namespaces, so that when these end, every process in them ends; None: no
            namespaces.
        pass_fds: descriptors that it inherits.
        streams: ``stdin``, ``stdout`` and ``stderr``, as for `subprocess.Popen`.

    Attributes:
        first: id of the namespaces' first process; without namespaces, of the process itself.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        wrap: Wrap | None = None,
        pass_fds: Sequence[int] = (),
        **streams: Any,
    ) -> None:
        info, info_end = os.pipe()
        with os.fdopen(info, "rb") as report:
            try:
                self.process: subprocess.Popen[bytes] = subprocess.Popen(
                    wrap(command, info_end) if wrap else command,
                    env=environment,
                    pass_fds=(*pass_fds, info_end) if wrap else pass_fds,
                    process_group=0,
                    **streams,
                )
            finally:
                # Otherwise the read below would not end: this process would hold the pipe open itself.
                os.close(info_end)
            self.first = self.process.pid
            # Without namespaces, or if they cannot be made, the pipe is closed without a report.
            with suppress(ValueError, KeyError):
                self.first = int(json.loads(report.read())["child-pid"])

    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self.process.poll() is None

    def send(self, content: bytes) -> None:
        """Write to its input. If the process has ended, the content is lost, and :meth:`read_line` shows that."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.write(content)
            self.process.stdin.flush()

    def end_input(self) -> None:
        """Close its input."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def read_line(self, seconds: float) -> bytes | None:
        """Read a line of its output; the line is incomplete if the process ended, and None if the time is over."""
        assert self.process.stdout
        deadline, line = time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            piece = os.read(self.process.stdout.fileno(), _READ_BYTES)
            if not piece:
                break
            line += piece
        return line

    def end(self, grace_seconds: float = 0.0) -> int:
        """End all its processes: the namespaces' first one, which ends the others there, then its group. Return its
        exit code.

        Args:
            grace_seconds: time in which it may end on its own.
        """
        self._wait(grace_seconds)
        if self.is_running() and self.first != self.process.pid:
            with suppress(ProcessLookupError):
                # The kernel then ends every process of the namespaces, also one that has left the group.
                os.kill(self.first, signal.SIGKILL)
            self._wait(EXIT_SECONDS)
        # Until this process is waited for, no other process can get its number.
        if self.is_running():
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        for stream in filter(None, (self.process.stdin, self.process.stdout, self.process.stderr)):
            with suppress(BrokenPipeError):
                stream.close()
        return code

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)

"""The fork server as a child process: start it at a level, request processes from it, end it."""

from __future__ import annotations

import json
import secrets
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO

from shared.contained.limits import end_first
from shared.contained.process import ContainedProcess
from shared.errors import Code, Unavailable
from shared.sandbox import bubblewrap
from shared.sandbox.channel import ChannelClosed
from shared.sandbox.environment import environment
from shared.sandbox.levels import Level, Limits

START_SECONDS = 30.0
_MAX_HELLO_BYTES = 4096


class ForkServer:
    """The running ``python -m shared.sandbox``. It ends when the control socket is closed, at the latest when this
    process ends.

    Args:
        disks: file systems for graders' files at the level bubblewrap, each of ``limits.tmpfs_bytes``.
    """

    def __init__(self, level: Level, limits: Limits, disks: int) -> None:
        self._level, self._folder = level, ""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        try:
            self._child = self._start(theirs, limits, disks)
        except OSError as error:
            self._control.close()
            self._log.close()
            raise failed(str(error)) from None
        finally:
            # Otherwise this process would never see the end of the connection.
            theirs.close()
        self._folder = self._hello()

    @property
    def pid(self) -> int:
        """Process id of the server, or of the first process of its namespaces."""
        return self._child.first

    def _start(self, control: socket.socket, limits: Limits, disks: int) -> ContainedProcess:
        def wrap(command: Sequence[str], info: int) -> list[str]:
            return bubblewrap.wrapped(command, environment(), info, limits.tmpfs_bytes, disks=disks)

        config = json.dumps({"level": self._level, "limits": asdict(limits)})
        return ContainedProcess(
            [sys.executable, "-s", "-P", "-m", "shared.sandbox", config],
            environment(),
            wrap=wrap if self._level == "bubblewrap" else None,
            stdin=control.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )

    def _hello(self) -> str:
        self._control.settimeout(START_SECONDS)
        try:
            folder = str(json.loads(self._control.recv(_MAX_HELLO_BYTES))["folder"])
        except (OSError, ValueError):
            reason = self._complaint()
            self.end()
            raise failed(reason) from None
        end_first(self.pid)
        return folder

    def _complaint(self) -> str:
        code = self._child.end(1)
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with {code} and without a message"

    def is_alive(self) -> bool:
        """Return whether it accepts requests; bubblewrap outlives the process in it for a moment."""
        state = select.poll()
        state.register(self._control, 0)
        return self._child.is_running() and not state.poll(0)

    def fork(self, channel: socket.socket, packages: list[str], disk: int) -> None:
        """Request a forked process for a grader; it communicates over the channel.

        Args:
            disk: the number of the file system for its files, at the level bubblewrap.

        Raises:
            ChannelClosed: the server has just ended.
        """
        request = json.dumps({"packages": packages, "number": secrets.randbelow(1 << 26), "disk": disk}).encode()
        try:
            socket.send_fds(self._control, [request], [channel.fileno()])
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    def end(self) -> None:
        """Close the socket, and kill processes that do not end then."""
        self._control.close()
        self._child.end(2)
        self._log.close()
        if self._level == "landlock" and self._folder:
            # A killed process has not removed its folder.
            subprocess.run(["rm", "-rf", "--", self._folder], check=False)


def failed(reason: str) -> Unavailable:
    """Return the error of a failed sandbox, whatever runs in it."""
    message = f"The sandbox for Python code has failed: {reason}."
    return Unavailable(
        Code.SANDBOX_FAILED, message, remedy="Try again; if the error persists, check the machine's memory."
    )

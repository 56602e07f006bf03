"""The fork server as a child process: start it at a level, request processes from it, end it."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

from shared.errors import Code, Unavailable
from shared.sandbox import bubblewrap
from shared.sandbox.channel import ChannelClosed
from shared.sandbox.environment import environment
from shared.sandbox.levels import Level, Limits

START_SECONDS = 30.0
_MAX_HELLO_BYTES = 4096


class ForkServer:
    """The running ``python -m shared.sandbox``. It ends when the control socket is closed, so at the latest with this
    process.

    Args:
        disks: file systems for graders' files at the level bubblewrap, each of ``limits.tmpfs_bytes``.
    """

    def __init__(self, level: Level, limits: Limits, disks: int) -> None:
        self._level, self._folder = level, ""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        info, info_end = os.pipe()
        with os.fdopen(info) as told:
            try:
                self._process = self._start(theirs, info_end, limits, disks)
            except OSError as error:
                self._control.close()
                self._log.close()
                raise failed(str(error)) from None
            finally:
                theirs.close()
                os.close(info_end)
            self._pid = self._process.pid
            with suppress(ValueError, KeyError):
                # bubblewrap reports the first process in its namespaces; the other level reports nothing.
                self._pid = int(json.loads(told.read())["child-pid"])
        self._folder = self._hello()

    def _start(self, control: socket.socket, info: int, limits: Limits, disks: int) -> subprocess.Popen[bytes]:
        config = json.dumps({"level": self._level, "limits": asdict(limits)})
        command = [sys.executable, "-s", "-P", "-m", "shared.sandbox", config]
        wrap = self._level == "bubblewrap"
        return subprocess.Popen(
            bubblewrap.wrapped(command, environment(), info, limits.tmpfs_bytes, disks=disks) if wrap else command,
            stdin=control.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env=environment(),
            pass_fds=(info,) if wrap else (),
            # Ctrl-C in a terminal does not reach it, and a kill reaches what it has forked.
            process_group=0,
        )

    def _hello(self) -> str:
        self._control.settimeout(START_SECONDS)
        try:
            folder = str(json.loads(self._control.recv(_MAX_HELLO_BYTES))["folder"])
        except (OSError, ValueError):
            reason = self._complaint()
            self.end()
            raise failed(reason) from None
        # When memory is short, the kernel ends these first.
        with suppress(OSError):
            Path(f"/proc/{self._pid}/oom_score_adj").write_text("1000")
        return folder

    def _complaint(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with {self._process.poll()} and without a message"

    def is_alive(self) -> bool:
        """Return whether it accepts requests; bubblewrap outlives the process in it for a moment."""
        state = select.poll()
        state.register(self._control, 0)
        return self._process.poll() is None and not state.poll(0)

    def fork(self, channel: socket.socket, packages: list[str], disk: int) -> None:
        """Have a process forked for a grader; it communicates over the channel.

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
        """Close the socket, and kill processes that do not end then: with namespaces their first process, else the
        group.
        """
        self._control.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
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

"""One grader: its source is compiled once in a confined process, and run for each item in a fork of it.

The top level of the source runs for each item too. So an item whose answer is an attack leaves nothing behind for the
next one, and no untrusted code runs in the process that reads the items.
"""

from __future__ import annotations

import gc
import json
import linecache
import math
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from shared.contained.limits import end_with_parent
from shared.sandbox import bubblewrap, confinement, seccomp
from shared.sandbox.channel import ChannelClosed, receive, send
from shared.sandbox.item_folder import empty, is_over
from shared.sandbox.levels import COMPILE_SECONDS, MAX_OUTPUT_BYTES, Limits
from shared.sandbox.packages import import_all, named_modules

FILE_NAME = "<grader>"
CHECK_SECONDS = 0.02
"""Interval at which the folder of a running item is measured."""
EXIT_SECONDS = 5.0
"""Time that a process may take to end after it has closed its result."""
MAX_MESSAGE_CHARACTERS, MAX_DETAIL_CHARACTERS = 1_000, 4_000
OWN_ERRORS = ("source", "raised")
"""Errors that an item may report itself; limits of time and size are detected from outside."""
_RESULT_FD = 3

Outcome = dict[str, Any]
"""Outcome of an item: ``score``; or ``error``, one of source, raised, time, limit, with ``message`` and ``detail``.
``output`` has the printed text.
"""


@dataclass(frozen=True, slots=True)
class Inheritance:
    """Settings that every process inherits from the fork server.

    Attributes:
        folder: parent of each grader's folder; None: each has a file system of its own.
        threads: whether an item may start threads, which requires that they are counted for that item alone.
        own_user: turn from root into a user.
        read_everything: see :func:`confinement.become`.
    """

    limits: Limits
    readable: tuple[Path, ...]
    folder: Path | None
    threads: bool
    own_user: bool
    read_everything: bool
    item_program: bytes
    server_program: bytes


def serve_items(inheritance: Inheritance, channel: socket.socket, parent: int, number: int, disk: int) -> None:
    """Confine this process, compile the source that comes first, and judge items until the channel is closed."""
    try:
        folder = _close_in(inheritance, parent, number, disk)
    except OSError as error:
        send(channel, {"error": "server", "message": str(error)})
        return
    try:
        send(channel, {})
        code = _compile(receive(channel)["source"])
        send(channel, code if isinstance(code, dict) else {})
        while isinstance(code, CodeType):
            send(channel, _judge(inheritance, code, receive(channel), channel))
            empty(folder)
    except ChannelClosed:
        # Free the file system for its next grader.
        empty(folder)


def _close_in(inheritance: Inheritance, parent: int, number: int, disk: int) -> Path:
    folder = (inheritance.folder or bubblewrap.disk(disk)) / str(number)
    folder.mkdir(mode=0o700)
    if inheritance.own_user:
        uid = confinement.own_uid(number)
        os.chown(folder, uid, uid)
        confinement.become(uid, read_everything=inheritance.read_everything)
    end_with_parent(parent)
    os.chdir(folder)
    os.environ.update({"HOME": str(folder), "TMPDIR": str(folder)})
    tempfile.tempdir = str(folder)  # tempfile remembers the fork server's folder
    confinement.limit_server(inheritance.limits)
    confinement.close_in(inheritance.readable, [folder], inheritance.server_program)
    return folder


def _compile(source: str) -> CodeType | Outcome:
    """Compile the source; return its code or its fault. A source that takes too long ends the process."""
    signal.setitimer(signal.ITIMER_REAL, COMPILE_SECONDS)
    try:
        code = compile(source, FILE_NAME, "exec")
    except SyntaxError as error:
        return {"error": "source", "message": f"line {error.lineno}: {error.msg}", "detail": _formatted(error)}
    except (ValueError, RecursionError, MemoryError) as error:
        return {"error": "source", "message": f"{type(error).__name__}: {error}", "detail": ""}
    linecache.cache[FILE_NAME] = (len(source), None, source.splitlines(keepends=True), FILE_NAME)
    import_all(named_modules(source))
    signal.setitimer(signal.ITIMER_REAL, 0)
    # As in the fork server: a collection in an item's fork would copy the pages that it shares.
    gc.freeze()
    return code


def _judge(inheritance: Inheritance, code: CodeType, request: dict[str, Any], channel: socket.socket) -> Outcome:
    """Run one item in a process of its own, and end that process in any case."""
    result_end, result = os.pipe()
    output_end, output = os.pipe()
    # Before the fork, because the child must notice if this process has ended by then.
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _be_item(inheritance, parent, code, request, result, output)
    # Otherwise this process, as a writer itself, would never reach the end of the two pipes.
    os.close(result)
    os.close(output)
    watch = _Watch(result_end, output_end, channel, inheritance.limits)
    try:
        reason = watch.until_end()
        if reason is None and not watch.result:
            _wait_for_exit(pid)
    finally:
        # Also after an answer: threads of the item may still run.
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(result_end)
        os.close(output_end)
    outcome = reason or _read_result(bytes(watch.result), os.waitstatus_to_exitcode(status), inheritance.limits)
    return {**outcome, "output": watch.output.decode(errors="replace")}


def _wait_for_exit(pid: int) -> None:
    """Wait for a process whose result is closed: its exit code, which gives the reason, comes a moment later."""
    deadline = time.monotonic() + EXIT_SECONDS
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.001)


class _Watch:
    """Reads an item's output until it ends, or has to be ended."""

    def __init__(self, result_end: int, output_end: int, channel: socket.socket, limits: Limits) -> None:
        self.result, self.output = bytearray(), bytearray()
        self._kept = {result_end: self.result, output_end: self.output}
        self._result_end, self._channel, self._limits = result_end, channel, limits
        self._poll = select.poll()
        for end in (result_end, output_end):
            self._poll.register(end, select.POLLIN)
        self._poll.register(channel.fileno(), select.POLLIN)

    def until_end(self) -> Outcome | None:
        """Wait for the process; return None when it has ended, else the reason to end it.

        Raises:
            ChannelClosed: its client no longer waits for it.
        """
        deadline = time.monotonic() + self._limits.wall_seconds
        while True:
            for descriptor, _ in self._poll.poll(CHECK_SECONDS * 1000):
                if descriptor == self._channel.fileno():
                    raise ChannelClosed
                if not self._keep(descriptor) and descriptor == self._result_end:
                    return None
            if time.monotonic() > deadline:
                message = f"it took longer than {self._limits.wall_seconds:g} s"
                return {"error": "time", "message": message, "detail": ""}
            if is_over(Path(), self._limits):
                message = f"its files took more than {self._limits.folder_bytes >> 20} MB, or were too many or too deep"
                return {"error": "limit", "message": message, "detail": ""}

    def _keep(self, descriptor: int) -> bool:
        """Read available output and keep its beginning; return False at the end."""
        content = os.read(descriptor, MAX_OUTPUT_BYTES)
        if not content:
            self._poll.unregister(descriptor)
        kept = self._kept[descriptor]
        kept += content[: MAX_OUTPUT_BYTES - len(kept)]
        return bool(content)


def _read_result(content: bytes, exit_code: int, limits: Limits) -> Outcome:
    if outcome := _parse_result(content):
        return outcome
    if exit_code in {-signal.SIGXCPU, -signal.SIGKILL}:
        message = (
            f"it was killed: it took more than {limits.wall_seconds:g} s of processor time, or the machine ran out "
            "of memory"
        )
        return {"error": "time", "message": message, "detail": ""}
    ending = (
        f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
    )
    return {"error": "raised", "message": f"its process {ending} before it had answered", "detail": ""}


def _parse_result(content: bytes) -> Outcome | None:
    """Parse an item's result, which may be forged: a score, or an error of its own. Anything else gives None.

    An item must not be able to report a failure of the sandbox, which would end the run, or more than can be forwarded.
    """
    try:
        claimed = json.loads(content)
        if not isinstance(claimed, dict):
            return None
        if claimed.get("error") in OWN_ERRORS:
            message, detail = (str(claimed.get(name, "")) for name in ("message", "detail"))
            return {
                "error": claimed["error"],
                "message": message[-MAX_MESSAGE_CHARACTERS:],
                "detail": detail[-MAX_DETAIL_CHARACTERS:],
            }
    except (ValueError, TypeError, RecursionError):
        return None
    score = claimed.get("score")
    return {"score": score} if isinstance(score, float) and math.isfinite(score) else None


def _be_item(
    inheritance: Inheritance, parent: int, code: CodeType, request: dict[str, Any], result: int, output: int
) -> None:
    """Run the code; never returns. After the call of ``exec``, nothing in this process can be relied on."""
    outcome: Outcome = {"error": "raised", "message": "its process could not be confined", "detail": ""}
    try:
        end_with_parent(parent)
        os.dup2(output, 1)
        os.dup2(output, 2)
        result_copy = os.dup(result) if result == _RESULT_FD else result
        os.dup2(result_copy, _RESULT_FD)
        # The item's code must reach neither the channel nor a pipe of another item.
        os.closerange(_RESULT_FD + 1, inheritance.limits.files)
        sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        confinement.limit_item(inheritance.limits, inheritance.limits.threads if inheritance.threads else 0)
        # After the limits, because this program refuses setrlimit.
        seccomp.apply(inheritance.item_program)
        outcome = _run(code, request)
        sys.stdout.flush()
        os.write(_RESULT_FD, json.dumps(outcome).encode())
    finally:
        os._exit(0)


def _run(code: CodeType, request: dict[str, Any]) -> Outcome:
    names: dict[str, Any] = {"__name__": "grader", "__builtins__": __builtins__}
    # Seeded here, because a fork reseeds the generator.
    random.seed(0)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(0)
    try:
        exec(code, names)  # noqa: S102 - this is what the sandbox is for
    except BaseException as error:
        return {"error": "source", "message": _message(error), "detail": _formatted(error)}
    grade = names.get("grade")
    if not callable(grade):
        return {"error": "source", "message": "it does not define a function `grade(sample, item)`", "detail": ""}
    if request.get("check"):
        return {"score": 0.0}
    try:
        value = grade(request["sample"], request["item"])
        score = float(value) if hasattr(value, "__float__") else math.nan
    except BaseException as error:
        # Foreign code may raise anything, `SystemExit` too.
        return {"error": "raised", "message": _message(error), "detail": _formatted(error)}
    if not math.isfinite(score):
        message = f"`grade` returned {str(value)[:100]!r}, which is not a finite number"
        return {"error": "raised", "message": message, "detail": message}
    return {"score": score}


def _message(error: BaseException) -> str:
    """Return the last line of a traceback."""
    return "".join(traceback.format_exception_only(error)).strip()[-MAX_MESSAGE_CHARACTERS:]


def _formatted(error: BaseException) -> str:
    """Format a traceback from the grader's source on."""
    frame = error.__traceback__
    while frame and frame.tb_frame.f_code.co_filename != FILE_NAME:
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame))[-MAX_DETAIL_CHARACTERS:]

"""A sandbox: one process that runs untrusted code; this module starts it and sends it requests.

with Sandbox.open(probe()) as sandbox:
    sandbox.grade("def grade(sample, item): return 1.0", {"output_text": "…"}, {})
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from shared.errors import Code, InvalidRequest, TooLarge
from shared.host import available_memory
from shared.sandbox.channel import MAX_MESSAGE_BYTES, ChannelClosed, receive, send
from shared.sandbox.child import ForkServer, failed
from shared.sandbox.levels import COMPILE_SECONDS, MAX_OUTPUT_BYTES, MAX_SOURCE_BYTES, Level, Limits, SandboxReport
from shared.sandbox.packages import named_packages

GRACE_SECONDS = 15.0
"""Additional time for an answer beyond the item's own limit, for imports, forking and a busy machine."""
RETRY_SECONDS = (0.1, 0.5)
# In JSON, a byte of the output can take six characters.
MAX_ANSWER_BYTES = 8 * MAX_OUTPUT_BYTES
LEAST_MEMORY_BYTES = 256 << 20
DISKS_OF_ITEM = 4
"""File systems per concurrent item; unused ones take no memory."""


class Sandbox:
    """Grades items, each in a process of its own that can reach nothing. Thread-safe.

    Args:
        level: level at which the code is confined. The caller must know that it confines code on this machine;
            :meth:`open` uses the probe's level.
        limits: limits of one item.
        parallel: number of concurrent items; further calls wait for their turn.
    """

    def __init__(self, level: Level, limits: Limits | None = None, parallel: int = 2) -> None:
        self.level: Level = level
        self.limits = limits or Limits()
        self._slots = threading.BoundedSemaphore(parallel)
        self.parallel = parallel
        # Guards the processes: `_idle`, `_busy`, `_process`, and whether more may be started.
        self._lock = threading.Lock()
        self._closed = False
        self._idle: list[tuple[str, socket.socket]] = []
        self._busy: set[socket.socket] = set()
        self._process: ForkServer | None = None
        # One for each possible process, and some for those that are just ending.
        self._disks = deque(range(DISKS_OF_ITEM * parallel))
        self._disk_of: dict[socket.socket, int] = {}

    @classmethod
    def open(
        cls, report: SandboxReport, limits: Limits | None = None, parallel: int = 2, share: int | None = None
    ) -> Sandbox:
        """Open and start a sandbox of the level that a probe has proven.

        Args:
            report: report of :func:`shared.sandbox.probe.probe`.
            limits: limits of one item. When left out, all items together get at most half of the memory that this machine has
                free.
            parallel: number of concurrent items.
            share: number of concurrent items of all sandboxes that share this memory; equals ``parallel`` when left
                out.

        Raises:
            InvalidRequest: ``SANDBOX_UNAVAILABLE``: no level on this machine can confine code.
            Unavailable: ``SANDBOX_FAILED``: it does not start.
        """
        if report.level is None:
            raise unavailable(report)
        if limits is None:
            most = Limits()
            item_memory = max(LEAST_MEMORY_BYTES, available_memory() // (2 * (share or parallel)))
            # If sandboxes with one file system each share the memory, all file systems together are no larger than one.
            folder = most.tmpfs_bytes * parallel // max(share or parallel, parallel)
            limits = Limits(
                memory_bytes=min(most.memory_bytes, item_memory), tmpfs_bytes=min(folder, item_memory * parallel)
            )
        sandbox = cls(report.level, limits, parallel)
        sandbox.start()
        return sandbox

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Start the process, unless it runs.

        Raises:
            Unavailable: ``SANDBOX_FAILED``.
        """
        with self._lock:
            self._running()

    def grade(self, source: str, sample: Mapping[str, Any], item: Mapping[str, Any]) -> float:
        """Run ``grade(sample, item)`` of a source; return its result.

        Raises:
            InvalidRequest: ``GRADER_SOURCE_INVALID``: it does not compile, its top level fails, or it has no ``grade``.
                ``details`` have ``traceback`` and ``output``.
            TooLarge: ``GRADER_TEXT_TOO_LONG``: sample and item have more than 64 MB, or are nested too deeply.
            Unavailable: ``SANDBOX_FAILED``: the sandbox itself has failed in three attempts, or was closed.
        """
        return float(self._ask(source, {"sample": sample, "item": item})["score"])

    def check(self, source: str) -> None:
        """Check that a source compiles, its top level runs, and it has a function ``grade``.

        Raises:
            InvalidRequest: ``GRADER_SOURCE_INVALID``.
            Unavailable: ``SANDBOX_FAILED``.
        """
        self._ask(source, {"check": True})

    @property
    def is_closed(self) -> bool:
        """True once it was closed, so that its running work must end."""
        return self._closed

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, as an item does, for other work that is confined in the same way."""
        with self._slots:
            yield

    def forget(self) -> None:
        """End the processes that wait for more items of their grader, so that no caller gets another caller's process."""
        with self._lock:
            for _, channel in self._idle:
                self._end(channel)
            self._idle.clear()

    def close(self) -> None:
        """End every process; calls that wait for an answer raise. May be called from another thread, and twice."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
            for channel in self._busy:
                # Wakes the thread that waits for its answer; that thread closes it.
                with suppress(OSError):
                    channel.shutdown(socket.SHUT_RDWR)
        # Outside the lock, which it takes itself.
        self.forget()
        if process:
            process.end()

    def _ask(self, source: str, request: dict[str, Any]) -> dict[str, Any]:
        if len(source.encode(errors="surrogatepass")) > MAX_SOURCE_BYTES:
            message = f"The source has more than {MAX_SOURCE_BYTES} bytes."
            raise InvalidRequest(Code.GRADER_SOURCE_INVALID, message, remedy="Shorten it.", param="grader.source")
        try:
            too_much = (
                f"have more than {MAX_MESSAGE_BYTES >> 20} MB" if len(json.dumps(request)) > MAX_MESSAGE_BYTES else ""
            )
        except RecursionError:
            too_much = "are nested too deeply"
        if too_much:
            raise TooLarge(Code.GRADER_TEXT_TOO_LONG, f"Sample and item {too_much}.", remedy="Shorten them.")
        with self._slots:
            # A process may be killed, by the kernel when memory is short, or by an operator. Grading is a pure function, so
            # it is retried.
            for pause in RETRY_SECONDS:
                try:
                    return self._ask_once(source, request)
                except ChannelClosed:
                    time.sleep(pause)
            try:
                return self._ask_once(source, request)
            except _CompilerEnded:
                message = f"compiling it took more than {COMPILE_SECONDS:g} s, or more memory than allowed"
                _raise_error({"error": "source", "message": message})
                raise
            except ChannelClosed as error:
                raise failed(f"its processes ended three times: {error}") from None

    def _ask_once(self, source: str, request: dict[str, Any]) -> dict[str, Any]:
        channel = self._take(source)
        try:
            if channel is None:
                channel = self._new_channel(source)
            send(channel, request)
            outcome = receive(channel, MAX_ANSWER_BYTES)
        except BaseException:
            # The process is not used again, because a late answer would be taken for that of the next request.
            if channel:
                self._drop(channel)
            raise
        self._give_back(source, channel)
        _raise_error(outcome)
        return dict(outcome)

    def _take(self, source: str) -> socket.socket | None:
        """Return a waiting process of this source."""
        with self._lock:
            for place, (compiled, channel) in enumerate(self._idle):
                if compiled == source:
                    del self._idle[place]
                    self._busy.add(channel)
                    return channel
        return None

    def _new_channel(self, source: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        # Longer than the limit of the sandbox itself, whose answer names the limit that was reached.
        ours.settimeout(self.limits.wall_seconds + GRACE_SECONDS)
        try:
            with self._lock, theirs:
                self._busy.add(ours)
                self._disk_of[ours] = self._disks.popleft()
                self._running().fork(theirs, named_packages(source), self._disk_of[ours])
            _raise_error(receive(ours, MAX_ANSWER_BYTES))
            send(ours, {"source": source})
            _raise_error(_compiled(ours))
        except BaseException:
            self._drop(ours)
            raise
        return ours

    def _running(self) -> ForkServer:
        if self._closed:
            raise failed("it was closed")
        if self._process is None or not self._process.is_alive():
            if self._process:
                self._process.end()
            own = self.limits.tmpfs_bytes // self.parallel
            self._process = ForkServer(self.level, replace(self.limits, tmpfs_bytes=own), DISKS_OF_ITEM * self.parallel)
        return self._process

    def _give_back(self, source: str, channel: socket.socket) -> None:
        with self._lock:
            self._busy.discard(channel)
            self._idle.append((source, channel))
            # Closing its channel ends a process; the one that has waited longest goes first.
            while len(self._idle) > (0 if self._closed else self.parallel):
                self._end(self._idle.pop(0)[1])

    def _drop(self, channel: socket.socket) -> None:
        with self._lock:
            self._busy.discard(channel)
            self._end(channel)

    def _end(self, channel: socket.socket) -> None:
        """Close a channel, which ends its process; its file system is reused last."""
        channel.close()
        if (disk := self._disk_of.pop(channel, None)) is not None:
            self._disks.append(disk)


class _CompilerEnded(ChannelClosed):
    """A process has ended while compiling."""


def _compiled(channel: socket.socket) -> dict[str, Any]:
    try:
        outcome: dict[str, Any] = receive(channel, MAX_ANSWER_BYTES)
    except ChannelClosed as error:
        raise _CompilerEnded(str(error)) from None
    return outcome


def _raise_error(outcome: dict[str, Any]) -> None:
    if not (error := outcome.get("error")):
        return
    if error == "server":
        raise failed(str(outcome.get("message")))
    details = {"traceback": str(outcome.get("detail", "")), "output": str(outcome.get("output", ""))}
    code, sentence, remedy = _ERRORS.get(str(error), _ERRORS["raised"])
    message = f"{sentence}: {outcome.get('message')}."
    raise InvalidRequest(code, message, remedy=remedy, param="grader.source", details=details)


_ERRORS: dict[str, tuple[Code, str, str]] = {
    "source": (
        Code.GRADER_SOURCE_INVALID,
        "The grader's source cannot be used",
        (
            "Write Python of this release with a function `grade(sample, item)` that returns a number; "
            "docs/evaluation.md lists the packages."
        ),
    ),
    "raised": (Code.GRADER_FAILED, "The grader failed", "Try it with graders/run; the details contain its traceback."),
    "limit": (
        Code.GRADER_FAILED,
        "The grader failed",
        "Reduce its time, memory and files; docs/evaluation.md lists the limits.",
    ),
    "time": (Code.GRADER_TIMEOUT, "The grader was ended", "Make it faster; docs/evaluation.md lists the limits."),
}


def unavailable(report: SandboxReport) -> InvalidRequest:
    """Return the refusal of code on a machine that cannot confine it."""
    message = f"This machine has no sandbox to run Python code in ({report.statement})."
    remedy = (
        "Use another grader, or a check in its block `mens`; docs/evaluation.md lists the requirements of a sandbox."
    )
    return InvalidRequest(Code.SANDBOX_UNAVAILABLE, message, remedy=remedy, param="grader")

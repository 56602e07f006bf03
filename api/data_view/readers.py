"""Asks contained processes for rows and reports. A process serves one file and one base, and is ended when it has been
idle for a minute.

A process holds one file of one tenant, so no row outlives it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shared.errors
from shared.contained.process import ContainedProcess
from shared.errors import Code, InvalidRequest, MensError, Unavailable
from shared.sandbox.environment import environment

KEPT = 2
"""Idle processes that wait for the next page of their file."""
# Each process that waits for the next page keeps a tokenizer in memory.
IDLE_SECONDS = 60.0
START_SECONDS, ROWS_SECONDS, REPORT_SECONDS = 60.0, 30.0, 900.0
"""Limits of elapsed time; the limits of processor time, in the process itself, are shorter."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """A file on this machine, and the folder of the base that it is read for."""

    path: Path
    base: Path | None

    @property
    def key(self) -> tuple[str, int, str]:
        """Identity of the source: a file that was fetched again counts as a different file, which a confined process
        cannot open.
        """
        return str(self.path), self.path.stat().st_ino, str(self.base)


@dataclass(slots=True)
class _Child:
    """A process that reads one source."""

    process: ContainedProcess
    idle_since: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, source: DataSource) -> _Child:
        """Start a process, and wait until it has loaded the tokenizer.

        Raises:
            MensError: the base's tokenizer or template cannot be used.
            InvalidRequest: ``DATA_VIEW_FAILED``.
            Unavailable: ``PROGRAM_FAILED``.
        """
        config = json.dumps({"path": str(source.path), "base": str(source.base) if source.base else None})
        try:
            # -P: Python must not import from the current folder.
            process = ContainedProcess(
                [sys.executable, "-P", "-W", "ignore", "-m", "api.data_view.child_process", config],
                environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None,
            )
        except OSError as error:
            message = f"The process that reads a file's rows cannot be started: {error.strerror}."
            raise Unavailable(Code.PROGRAM_FAILED, message, remedy="Try again; check the machine's memory.") from error
        child = cls(process)
        try:
            child.read(START_SECONDS)
        except BaseException:
            # No caller has the process yet, so nothing else would end it.
            process.end()
            raise
        return child

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer to a request. If the process did not report the error itself, it has ended.

        Raises:
            MensError: the error that the process reports.
            InvalidRequest: ``DATA_VIEW_FAILED``: a row exceeds a limit.
        """
        self.process.send(json.dumps(request).encode() + b"\n")
        return self.read(seconds)

    def read(self, seconds: float) -> dict[str, Any]:
        line = self.process.read_line(seconds)
        if line is None or not line.endswith(b"\n"):
            self.process.end()
            raise _failed(
                f"it took more than {seconds:g} s" if line is None else "it exceeded its limit of time or memory"
            )
        answer: dict[str, Any] = json.loads(line)
        if error := answer.get("error"):
            raise _error(error)
        return answer


class FileReaders:
    """The processes of this API; safe to use from several threads."""

    def __init__(self) -> None:
        # Guards `_idle` and `_timer`.
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, int, str], _Child] = {}
        self._timer: threading.Timer | None = None

    def rows(self, source: DataSource, rows_request: dict[str, Any]) -> Any:
        """Return a page (`RowsRead`), from the process that has read the file before, if it is still running."""
        child = self._take(source)
        try:
            answer = child.ask({"rows": rows_request}, ROWS_SECONDS)["rows"]
        except BaseException:
            # The process is not reused: its next answer would belong to this request.
            child.process.end()
            raise
        self._put_back(source, child)
        return answer

    def report(self, source: DataSource, report_request: dict[str, Any]) -> Any:
        """Return a report (`ReportMade`), made by a separate process."""
        child = _Child.start(source)
        try:
            return child.ask({"report": report_request}, REPORT_SECONDS)["report"]
        finally:
            child.process.end()

    def _take(self, source: DataSource) -> _Child:
        self.end_idle()
        with self._lock:
            # Taken out, so that two requests never read each other's answers from one process.
            child = self._idle.pop(source.key, None)
        if child and child.process.is_running():
            return child
        if child:
            child.process.end()
        return _Child.start(source)

    def _put_back(self, source: DataSource, child: _Child) -> None:
        child.idle_since = time.monotonic()
        with self._lock:
            surplus = [self._idle.pop(next(iter(self._idle)))] if len(self._idle) >= KEPT else []
            if source.key in self._idle:
                surplus.append(child)
            else:
                self._idle[source.key] = child
            self._set_timer()
        # Outside the lock: ending waits for the process, and other requests would wait with it.
        for superfluous in surplus:
            superfluous.process.end()

    def _set_timer(self) -> None:
        """Set the timer for the process that has been idle longest, if it is not set; called with the lock held."""
        if self._timer or not self._idle:
            return
        ends = min(child.idle_since for child in self._idle.values()) + IDLE_SECONDS
        self._timer = threading.Timer(max(ends - time.monotonic(), 0.0), self._ring)
        # A daemon: the end of this process does not wait for it.
        self._timer.daemon = True
        self._timer.start()

    def _ring(self) -> None:
        try:
            self.end_idle(IDLE_SECONDS)
        finally:
            with self._lock:
                self._timer = None
                self._set_timer()

    def end_idle(self, seconds: float = IDLE_SECONDS) -> None:
        """End the processes that have been idle for this time."""
        now = time.monotonic()
        with self._lock:
            ended = [key for key, child in self._idle.items() if now - child.idle_since >= seconds]
            children = [self._idle.pop(key) for key in ended]
        # Outside the lock, as above.
        for child in children:
            child.process.end()


def _error(fields: dict[str, Any]) -> MensError:
    kind = getattr(shared.errors, fields.pop("kind"))
    assert issubclass(kind, MensError)
    error: MensError = kind(fields.pop("code"), fields.pop("message"), **fields)
    return error


def _failed(reason: str) -> InvalidRequest:
    return InvalidRequest(
        Code.DATA_VIEW_FAILED,
        f"The process that reads the file's rows was ended: {reason}.",
        remedy=(
            "Request fewer rows, or begin after a different line: one of the rows makes the base's chat template too "
            "slow."
        ),
    )

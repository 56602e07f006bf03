"""Check code that a model or a tenant wrote, in a child process with limits: no input can end or stall the calling
process.

CPython's parser and compiler recurse; deeply nested code can end the process that parses it. The child has no keys and
no environment, and is replaced when it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shared.checkers.checker import Check, Diagnostic
from shared.checkers.languages import require_language
from shared.checkers.unit import Units, from_wire
from shared.contained.process import ContainedProcess
from shared.errors import Code, InvalidRequest, Unavailable

MAX_CHARACTERS = 200_000
SECONDS = 20.0
ROOT = Path(__file__).resolve().parents[2]


class ContainedCheckers:
    """The checkers of all languages, in one child process that starts at the first check. Thread-safe.

    A context manager; leaving it ends the child.

    Args:
        seconds: time limit of one check.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        # One request at a time: the child's answers do not say to which request they belong.
        self._lock = threading.Lock()
        self._child: ContainedProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._end()

    def check(self, language: str, text: str) -> Check:
        """Find all faults of a piece of code. Code that cannot be checked within the limits gets a diagnostic that says
        so.

        Raises:
            Unavailable: ``CHECKER_FAILED``: the checker has a fault of its own, or its process cannot be started.
        """
        too_long, answer = self._answer(language, text, {})
        return Check(too_long) if answer is None else _check(answer)

    def units(self, language: str, text: str) -> Units:
        """Divide a file into its units. A text that cannot be divided within the limits gets a diagnostic that says so.

        Raises:
            InvalidRequest: ``CHECKER_NOT_FOUND``: also if the language's checker does not divide files.
            Unavailable: as :meth:`check`.
        """
        too_long, answer = self._answer(language, text, {"units": True})
        if answer is None:
            return Units((), too_long)
        if (units := answer.get("units", [])) is None:
            message = f"The checker of {language} does not divide files into units."
            remedy = "Extract `python`, `sql` or `markdown`, or give the checker a method `units` (docs/extending.md)."
            raise InvalidRequest(Code.CHECKER_NOT_FOUND, message, remedy=remedy, param="language")
        return Units(tuple(map(from_wire, units)), _check(answer).diagnostics)

    def _answer(
        self, language: str, text: str, more: dict[str, Any]
    ) -> tuple[tuple[Diagnostic, ...], dict[str, Any] | None]:
        """Return the child's answer, or None with the diagnostic of a text that is not sent."""
        require_language(language)
        if len(text) > MAX_CHARACTERS:
            message = f"it has {len(text)} characters; at most {MAX_CHARACTERS} can be checked"
            return (Diagnostic("too_long", message),), None
        request = json.dumps({"language": language, "text": text, **more}).encode() + b"\n"
        with self._lock:
            answer = self._ask(request)
        if "error" not in answer:
            return (), answer
        message = f"The checker of {language} failed: {answer['error']}"
        raise Unavailable(Code.CHECKER_FAILED, message, remedy="Report it to the maintainers of this checker.")

    def _ask(self, request: bytes) -> dict[str, Any]:
        child = self._running()
        child.send(request)
        line = child.read_line(self._seconds)
        if line is None:
            self._end()
            return _fault("time_limit", f"it takes longer than {self._seconds:g} s to check")
        if not line.endswith(b"\n"):
            self._end()
            return _fault("too_complex", "checking it ended the checker's process")
        answer: dict[str, Any] = json.loads(line)
        if answer["is_last"]:
            self._end()
        return answer

    def _running(self) -> ContainedProcess:
        if self._child and not self._child.is_running():
            self._end()
        if self._child is None:
            # -P: the folder where this was started must not be a library path. Warnings are not faults.
            self._child = ContainedProcess(
                [sys.executable, "-P", "-W", "ignore", "-m", "shared.checkers.child_process"],
                {"PYTHONPATH": _search_path(), "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child:
            child.end()


def _search_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def _fault(code: str, message: str) -> dict[str, Any]:
    return {"diagnostics": [[code, message, None, None]], "constructs": {}, "size": 0}


def _check(answer: dict[str, Any]) -> Check:
    faults = tuple(Diagnostic(*fault) for fault in answer["diagnostics"])
    return Check(faults, answer.get("constructs", {}), answer.get("size", 0))

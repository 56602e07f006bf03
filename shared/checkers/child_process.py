"""Process that checks code: reads one request per line of standard input, and writes one answer per line to its output.

Started by `contained.py`, which sends {"language", "text"} and gets {"diagnostics", "constructs", "size"} or {"error"};
with {"units": true} it gets {"diagnostics", "units"}, where null says that the checker does not divide files. "is_last"
means that the process ends after this answer, and another one must be started. Parsers are not a sandbox: the limits of
this process bound hostile input.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from typing import Any, TextIO

from shared.checkers.checker import Check, Checker, Diagnostic
from shared.checkers.languages import load_checker
from shared.checkers.unit import UnitFinder, Units, to_wire
from shared.contained import limits

MEMORY_BYTES = 1 << 30
CPU_SECONDS = 20
OPEN_FILES = 64


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    # Output that a checker prints must not be read as an answer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    limits.end_first()
    limits.limit(resource.RLIMIT_AS, MEMORY_BYTES)
    limits.limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    limits.limit(resource.RLIMIT_FSIZE, 0)
    limits.dump_nothing()
    serve(sys.stdin, answers)


def serve(requests: TextIO, answers: TextIO) -> None:
    """Check one piece of code after another; one that needs too much memory ends the process, which is replaced."""
    checkers: dict[str, Checker] = {}
    for line in requests:
        request = json.loads(line)
        limits.limit_added_processor_time(CPU_SECONDS)
        answer, is_last = _answer(checkers, request["language"], request["text"], request.get("units", False))
        answers.write(json.dumps({**answer, "is_last": is_last}) + "\n")
        answers.flush()
        if is_last:
            return


def _answer(checkers: dict[str, Checker], language: str, text: str, wants_units: bool) -> tuple[dict[str, Any], bool]:
    try:
        if language not in checkers:
            checkers[language] = load_checker(language)
        checker = checkers[language]
        if not wants_units:
            return _wire(checker.check(text)), False
        if not isinstance(checker, UnitFinder):
            return {"units": None}, False
        return _divided(checker, text), False
    except (RecursionError, MemoryError):
        return _wire(Check((Diagnostic("too_complex", "it is nested too deeply, or too large to be checked"),))), True
    except Exception as error:
        # A checker of another package may raise anything; the process has to answer, or its caller waits for the limit.
        return {"error": f"{type(error).__name__}: {error}"[:500]}, False


def _divided(finder: UnitFinder, text: str) -> dict[str, Any]:
    # A syntax tree has hundreds of thousands of nodes and no cycles: its last reference frees it. The garbage collector
    # would scan it repeatedly while it grows, which takes a third of the time of parsing, and free nothing.
    gc.disable()
    try:
        return _wire_units(finder.units(text))
    finally:
        gc.enable()


def _wire(check: Check) -> dict[str, Any]:
    return {"diagnostics": _faults(check.diagnostics), "constructs": dict(check.constructs), "size": check.size}


def _wire_units(result: Units) -> dict[str, Any]:
    return {"diagnostics": _faults(result.diagnostics), "units": [to_wire(unit) for unit in result.units]}


def _faults(diagnostics: tuple[Diagnostic, ...]) -> list[list[Any]]:
    return [[fault.code, fault.message[:500], fault.line, fault.column] for fault in diagnostics]


if __name__ == "__main__":
    main()

"""Checks of code in an answer: it compiles, and it is no stub. The text goes to a child process and is never run."""

from __future__ import annotations

from shared.checkers.answers import code_of
from shared.checkers.anti_stub import measure_substance
from shared.checkers.contained import ContainedCheckers
from shared.graders.types import AntiStubCheck, CompilesCheck


def passes_code_check(
    check: CompilesCheck | AntiStubCheck, text: str, checkers: ContainedCheckers | None = None
) -> bool:
    """Whether the code of a text compiles, and for ``anti_stub`` does something.

    Args:
        checkers: a child process that is kept; without it one is started for this text, which takes a tenth of a second.

    Raises:
        InvalidRequest: ``CHECKER_NOT_FOUND``.
        Unavailable: ``CHECKER_FAILED``.
    """
    if checkers is None:
        with ContainedCheckers() as started:
            return passes_code_check(check, text, started)
    code = code_of(text).code
    found = checkers.check(check.language, code)
    return found.compiles and (isinstance(check, CompilesCheck) or measure_substance(code, found).passes)

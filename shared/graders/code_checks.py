"""Checks of code in an answer: it compiles, and it is more than a stub.

The code goes to a child process, or to a compiler in the sandbox, and is never run.
"""

from __future__ import annotations

from shared.checkers.answers import code_of
from shared.checkers.anti_stub import measure_substance
from shared.checkers.contained import MAX_CHARACTERS, ContainedCheckers
from shared.checkers.languages import is_checked, require_language
from shared.compilers.compiled import run_compiler
from shared.compilers.compiler import find_compiler
from shared.compilers.probe import require_contained
from shared.errors import Code, InvalidRequest
from shared.graders.types import AntiStubCheck, CodeCheck, CompilesCheck
from shared.sandbox.client import Sandbox


def compiled_language(check: CodeCheck) -> str | None:
    """Return the check's language if a compiler judges it; None if a checker does, which also analyses the code."""
    is_compiled = isinstance(check, CompilesCheck) and not is_checked(check.language) and find_compiler(check.language)
    return check.language if is_compiled else None


def require_code_check(check: CodeCheck, sandbox: Sandbox | None) -> None:
    """Raise an error unless code can be checked here.

    Raises:
        InvalidRequest: ``SANDBOX_UNAVAILABLE``: the check needs a compiler, and no sandbox here can confine it.
    """
    language = compiled_language(check)
    if language is None:
        require_language(check.language)
    elif sandbox is None:
        message = f"A compiler checks {language}, but this machine has no sandbox to run it in."
        remedy = (
            "Check another language, or run it on a machine with a sandbox; docs/evaluation.md lists the requirements."
        )
        raise InvalidRequest(Code.SANDBOX_UNAVAILABLE, message, remedy=remedy, param="grader")
    else:
        require_contained(language, sandbox)


def passes_code_check(
    check: CompilesCheck | AntiStubCheck,
    text: str,
    checkers: ContainedCheckers | None = None,
    sandbox: Sandbox | None = None,
) -> bool:
    """Return whether the code in an answer compiles, and for ``anti_stub`` does something.

    Args:
        checkers: a running child process; without it one is started for this call, which takes a tenth of a second.
        sandbox: sandbox in which compilers run.

    Raises:
        InvalidRequest: as :func:`require_code_check`.
    """
    require_code_check(check, sandbox)
    if (language := compiled_language(check)) and sandbox:
        return _compiles(language, code_of(text).code, sandbox)
    if checkers is None:
        with ContainedCheckers() as started:
            return passes_code_check(check, text, started)
    code = code_of(text).code
    check_result = checkers.check(check.language, code)
    return check_result.compiles and (isinstance(check, CompilesCheck) or measure_substance(code, check_result).passes)


def _compiles(language: str, code: str, sandbox: Sandbox) -> bool:
    compiler = find_compiler(language)
    assert compiler
    return len(code) <= MAX_CHARACTERS and run_compiler(compiler, code, sandbox).compiles

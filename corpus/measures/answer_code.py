"""Code in the last answer of a training row, and the result of the checker for its language. The code is not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.checkers.answers import fenced_blocks
from shared.checkers.checker import Check, Diagnostic
from shared.checkers.contained import ContainedCheckers
from shared.datasets.rows import Record

_UNREADABLE = frozenset(("syntax", "too_long", "too_complex", "time_limit"))
"""Faults for which the answer itself is responsible. Undefined names do not count, because the prompt may define them.
"""


@dataclass(frozen=True, slots=True)
class CheckedCode:
    """Code of an answer with the result of its checker.

    Attributes:
        check: check of the code, or of a function around it if the code is valid only inside a function.
        faults: why it cannot be parsed; empty if it can.
    """

    language: str
    code: str
    check: Check
    faults: tuple[Diagnostic, ...] = ()


def checked_codes(record: Record, languages: Sequence[str], checkers: ContainedCheckers) -> Iterator[CheckedCode]:
    """Check the blocks of code of a row's last answer one by one, so that a caller can stop at the first fault."""
    for language, code, is_whole in codes_of(record, languages):
        check = checkers.check(language, code)
        faults = _unreadable(check)
        if faults and not is_whole:
            # A part of a function, such as its body.
            inside = checkers.check(language, "def _():\n" + "\n".join(f"    {line}" for line in code.split("\n")))
            if not _unreadable(inside):
                check, faults = inside, ()
        yield CheckedCode(language, code, check, faults)


def codes_of(record: Record, languages: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield the language and code of each fence with a language in the last answer, or of an answer that is only code,
    and whether it is a fenced block.

    If only one language is checked, a fence without a label counts as that language, unless another fence of the answer
    has a label: next to labelled code, an unlabelled fence holds its output. An unclosed fence counts as a block too,
    as in graders: the answer was cut off.
    """
    # For a pair, the preferred answer: the rejected one may be bad.
    answer = next((turn.content for turn in reversed(record.conversation()) if turn.role == "assistant"), None) or ""
    blocks = fenced_blocks(answer)
    is_unlabelled = len(languages) == 1 and not any(block.language for block in blocks)
    for block in blocks:
        language = languages[0] if is_unlabelled else block.language
        if language in languages:
            yield language, block.code, True
    if not blocks and record.response_mode == "code_only" and len(languages) == 1:
        yield languages[0], answer, False


def _unreadable(check: Check) -> tuple[Diagnostic, ...]:
    return tuple(fault for fault in check.diagnostics if fault.code in _UNREADABLE)

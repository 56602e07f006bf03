"""Extract the code of a model's answer: the content of Markdown fences, or all of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Possessive quantifiers: without backtracking, time is linear in the line's length.
FENCE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)[ \t]*+([\w+#.-]*+)[^\n`]*+$")
"""The line that begins or ends a fenced block: its mark, and the language."""


@dataclass(frozen=True, slots=True)
class AnswerCode:
    """The code in an answer.

    Attributes:
        code: the contents of the fences, joined; without a fence, the whole answer.
        strictness: the share of the answer's lines that are code; fences and blank lines are not counted.
        is_bare: the answer is code alone, without fences or other lines.
    """

    code: str
    strictness: float
    is_bare: bool


def blocks_of(answer: str) -> list[str]:
    """Return the contents of the fenced blocks of an answer, in order; a block without an end reaches to the end."""
    blocks: list[list[str]] = []
    fence = ""
    for line in answer.split("\n"):
        mark = FENCE.match(line)
        if fence and mark and mark[1].startswith(fence) and not mark[2]:
            fence = ""
        elif not fence and mark:
            fence = mark[1]
            blocks.append([])
        elif fence:
            blocks[-1].append(line)
    return ["\n".join(lines) for lines in blocks]


def code_of(answer: str) -> AnswerCode:
    """Return the code of an answer: all fenced blocks, in order; a block without an end reaches to the end."""
    code: list[str] = []
    prose = 0
    fence = ""
    is_fenced = False
    for line in answer.split("\n"):
        mark = FENCE.match(line)
        if fence and mark and mark[1].startswith(fence) and not mark[2]:
            fence = ""
        elif not fence and mark:
            fence, is_fenced = mark[1], True
        elif fence:
            code.append(line)
        else:
            prose += bool(line.strip())
    if not is_fenced:
        return AnswerCode(answer, 1.0, is_bare=True)
    lines = sum(bool(line.strip()) for line in code)
    return AnswerCode("\n".join(code), lines / (lines + prose) if lines else 0.0, is_bare=False)

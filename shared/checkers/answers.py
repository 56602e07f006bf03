"""Extract the code of a model's answer: the content of Markdown fences, or all of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Possessive quantifiers: without backtracking, time is linear in the line's length.
FENCE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)[ \t]*+([\w+#.-]*+)[^\n`]*+$")
"""The line that begins or ends a fenced block: its mark, and the language."""
LANGUAGE_NAMES = {"py": "python", "python3": "python", "sqlite": "sql", "sh": "bash", "shell": "bash", "yml": "yaml"}
"""Other names of languages in fences."""


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


@dataclass(frozen=True, slots=True)
class FencedBlock:
    """A fenced block of an answer.

    Attributes:
        language: its label, by the name that checkers have; empty without one.
    """

    language: str
    lines: tuple[str, ...]

    @property
    def code(self) -> str:
        return "\n".join(self.lines)


def fenced_blocks(answer: str) -> list[FencedBlock]:
    """Return the fenced blocks of an answer, in order; a block without an end reaches to the end."""
    return _divided(answer)[0]


def blocks_of(answer: str) -> list[str]:
    """Return the contents of the fenced blocks of an answer, in order."""
    return [block.code for block in fenced_blocks(answer)]


def code_of(answer: str) -> AnswerCode:
    """Return the code of an answer: all fenced blocks, in order, with any label."""
    blocks, prose = _divided(answer)
    if not blocks:
        return AnswerCode(answer, 1.0, is_bare=True)
    code = [line for block in blocks for line in block.lines]
    lines = sum(bool(line.strip()) for line in code)
    return AnswerCode("\n".join(code), lines / (lines + prose) if lines else 0.0, is_bare=False)


def _divided(answer: str) -> tuple[list[FencedBlock], int]:
    """Return the blocks, and the number of other lines that are not blank."""
    blocks: list[tuple[str, list[str]]] = []
    prose, fence = 0, ""
    for line in answer.split("\n"):
        mark = FENCE.match(line)
        if fence and mark and mark[1].startswith(fence) and not mark[2]:
            fence = ""
        elif not fence and mark:
            fence, label = mark[1], mark[2].lower()
            blocks.append((LANGUAGE_NAMES.get(label, label), []))
        elif fence:
            blocks[-1][1].append(line)
        else:
            prose += bool(line.strip())
    return [FencedBlock(language, tuple(lines)) for language, lines in blocks], prose

"""Method ``self_align``: code → concepts → a task → answers with tests; one answer that passes its own tests in the
sandbox is kept.

Tests that pass without the answer prove nothing, so they must fail on an empty answer. Source: Wei et al.,
"SelfCodeAlign" (2024).
"""

from __future__ import annotations

import hashlib
from typing import Any

from corpus.generation.asking import RowDropped
from corpus.generation.methods.method import RowRequests
from corpus.generation.model_columns import SelfAlignColumn
from corpus.verdicts import VerdictCode
from shared.checkers.answers import blocks_of
from shared.errors import MensError
from shared.graders.grading import OF_THE_ANSWER
from shared.sandbox.levels import Limits

_CONCEPTS = (
    "List the programming concepts that this code uses, at most five, separated by commas. Reply with the list "
    "alone.\n\n```python\n{text}\n```"
)
_TASK = (
    "Write a programming task in Python that needs these concepts: {concepts}. It asks for one function, gives its "
    "name, its parameters and "
    "what it returns, and needs no files, network or packages. Reply with the task alone."
)
_ANSWER = (
    "{task}\n\nReply with two blocks of Python code. The first has the function. The second has tests of it: "
    "functions whose names "
    "begin with test_, with assert statements. The tests do not import the function."
)
TEST_LIMITS = Limits(wall_seconds=10.0, memory_bytes=1 << 30, tmpfs_bytes=64 << 20)
"""Limits for the tests of one answer, because some tests never end."""
SOURCE = """
def grade(sample, item):
    names = {"__name__": "answer"}
    exec(compile(sample["code"], "answer", "exec"), names)
    exec(compile(item["tests"], "tests", "exec"), names)
    for name in sorted(names):
        if name.startswith("test_") and callable(names[name]):
            names[name]()
    return 1.0
"""


def self_align(column: SelfAlignColumn, row: RowRequests) -> dict[str, Any]:
    """Return ``concepts``, ``instruction``, ``answer`` (code) and ``tests``.

    Raises:
        RowDropped: ``TESTS_FAILED``: no answer passes tests that fail without it.
    """
    concepts = row.ask(column, _CONCEPTS.format(text=row.fill(column.text)))
    task = row.ask(column, _TASK.format(concepts=concepts))
    passing = []
    for sample in range(column.n):
        try:
            blocks = blocks_of(row.ask(column, _ANSWER.format(task=task), sample=sample))
        except RowDropped:
            continue
        if len(blocks) == 2 and _passes(row, blocks[0], blocks[1]) and not _passes(row, "", blocks[1]):
            passing.append((blocks[0], blocks[1]))
    if not passing:
        raise RowDropped(VerdictCode.TESTS_FAILED)
    key = f"{row.tools.seed}\0{column.name}\0{row.index}\0"
    code, tests = min(passing, key=lambda pair: hashlib.sha256((key + pair[0]).encode()).digest())
    row.checks[column.name] = {"tests": "passed", "answers": column.n, "passing": len(passing)}
    return {"concepts": concepts, "instruction": task, "answer": code, "tests": tests}


def _passes(row: RowRequests, code: str, tests: str) -> bool:
    """Return whether tests pass on code, in the sandbox."""
    assert row.tools.sandbox
    try:
        return row.tools.sandbox.grade(SOURCE, {"code": code}, {"tests": tests}) == 1.0
    except MensError as error:
        if error.code in OF_THE_ANSWER:
            return False
        raise

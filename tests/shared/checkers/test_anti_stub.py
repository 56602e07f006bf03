"""Texts that only look like code are stubs: markers, a single line, a single kind of construct."""

from __future__ import annotations

import pytest

from shared.checkers.anti_stub import MARKERS, measure_substance
from shared.checkers.python_checker import PythonChecker

GOOD = "def double(values):\n    return [2 * value for value in values]\n"


def passes(code: str) -> bool:
    found = PythonChecker().check(code)
    assert found.compiles
    return measure_substance(code, found).passes


def test_code_that_does_something_passes() -> None:
    assert passes(GOOD)


@pytest.mark.parametrize("marker", [*MARKERS, "TODO:", "Not-Implemented", "raise NotImplementedError"])
def test_each_marker_is_found(marker: str) -> None:
    assert not passes(f"# {marker}\n{GOOD}")


@pytest.mark.parametrize("word", ["mastodon", "stubborn", "todos", "todo_list", "soon"])
def test_words_that_contain_a_marker_are_none(word: str) -> None:
    assert passes(f"# {word}\n{GOOD}")


@pytest.mark.parametrize(
    "code", ["x = 1\n", "def f():\n    pass\n", "def f():\n    ...\n", "def f(): return 1 + 2\n", "x = 1\ny = 2\n"]
)
def test_trivial_code_fails(code: str) -> None:
    assert not passes(code)

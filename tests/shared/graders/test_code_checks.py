"""The short forms for code: it compiles, and it is no stub; in the language that they name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shared.checkers.contained import ContainedCheckers
from shared.errors import Code, InvalidRequest
from shared.graders.grading import check_runnable, grade, make_sample
from shared.graders.types import GRADER, Grader

pytestmark = pytest.mark.network

GOOD = "def double(values):\n    return [2 * value for value in values]\n"


def make(**mens: Any) -> Grader:
    return GRADER.validate_python({"type": "python", "source": "", "mens": mens})


@pytest.fixture(scope="module")
def checkers() -> Iterator[ContainedCheckers]:
    with ContainedCheckers(seconds=60) as running:
        yield running


@pytest.mark.parametrize(
    ("language", "text", "compiles", "is_no_stub"),
    [
        ("python", GOOD, 1, 1),
        ("python", f"Of course:\n```python\n{GOOD}```\nTODO: try it.", 1, 1),
        ("python", f"{GOOD}# TODO\n", 1, 0),
        ("python", "def f():\n    pass\n", 1, 0),
        ("python", "def f(:", 0, 0),
        ("python", "print(missing)\n", 0, 0),
        ("python", "-" * 50_000 + "1", 0, 0),
        ("json", '{"a": [1]}', 1, 1),
        ("json", "1", 1, 0),
        ("sql", "SELECT a FROM t WHERE b = 1", 1, 1),
        ("sql", "SELECT FROM", 0, 0),
    ],
)
def test_code_is_checked(
    checkers: ContainedCheckers, language: str, text: str, compiles: float, is_no_stub: float
) -> None:
    for name, expected in (("compiles", compiles), ("anti_stub", is_no_stub)):
        grader = make(check=name, language=language)
        check_runnable(grader)
        assert grade(grader, {}, make_sample(text), checkers=checkers).score == expected


def test_without_a_kept_process_one_is_started() -> None:
    assert grade(make(check="compiles"), {}, make_sample(GOOD)).score == 1


def test_the_input_is_a_template(checkers: ContainedCheckers) -> None:
    grader = make(check="compiles", input="{{ item.before }}{{ sample.output_text }}")
    assert grade(grader, {"before": "x = 1\n"}, make_sample("print(x)\n"), checkers=checkers).score == 1


@pytest.mark.parametrize("name", ["compiles", "anti_stub"])
def test_an_unknown_language_is_refused_at_creation(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_runnable(make(check=name, language="cobol"))
    assert (refused.value.code, refused.value.param) == (Code.CHECKER_NOT_FOUND, "language")

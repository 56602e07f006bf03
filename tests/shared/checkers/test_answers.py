"""Code is found in an answer as Markdown marks it, and stubs are distinguished from code."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.checkers.answers import AnswerCode, code_of


@pytest.mark.parametrize(
    ("answer", "code", "strictness", "is_bare"),
    [
        ("x = 1\ny = 2", "x = 1\ny = 2", 1.0, True),
        ("```python\nx = 1\n```", "x = 1", 1.0, False),
        ("Here it is:\n\n```\nx = 1\n```\n", "x = 1", 0.5, False),
        ("```py\na = 1\n```\nand\n~~~\nb = 2\n~~~", "a = 1\nb = 2", 2 / 3, False),
        ("```python\nx = 1", "x = 1", 1.0, False),
        ("````\n```\ninner\n```\n````", "```\ninner\n```", 1.0, False),
        ("```\n```", "", 0.0, False),
        ("", "", 1.0, True),
    ],
)
def test_the_code_of_an_answer(answer: str, code: str, strictness: float, is_bare: bool) -> None:
    assert code_of(answer) == AnswerCode(code, pytest.approx(strictness), is_bare)


@given(st.text(alphabet="`~a \n", max_size=80))
def test_any_answer_has_code_and_a_share(answer: str) -> None:
    found = code_of(answer)
    assert 0 <= found.strictness <= 1
    assert not found.is_bare or found.code == answer


@pytest.mark.parametrize("line", ["```" + "a" * 200_000 + "`", "~~~" + " " * 100_000 + "a" * 100_000 + "`"])
def test_a_long_line_takes_no_longer_than_it_is(line: str) -> None:
    """Tried again from each character it would hold its process, which may be the API's, for minutes."""
    began = time.process_time()
    assert code_of(line).is_bare
    assert time.process_time() - began < 5

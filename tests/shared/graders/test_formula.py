"""Formulas of ``multi`` graders: precedence, functions, and formulas that cannot be parsed or have no value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Code, InvalidRequest
from shared.graders.formula import DEEPEST, LONGEST, Formula

SCORES = {"a": 0.5, "b": 2.0, "c_1": 3.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", 0.5),
        ("0.75 * a + 0.25 * b", 0.875),
        ("1 - 2 - 3", -4),
        ("8 / 4 / 2", 1),
        ("2 ^ 3 ^ 2", 512),
        ("-2 ^ 2", -4),
        ("2 ^ -1", 0.5),
        ("2 * -b", -4),
        ("--b", 2),
        ("(1 + b) * c_1", 9),
        ("min(a, b, c_1) + max(a)", 1.0),
        ("abs(-b) + floor(a) + ceil(a)", 3),
        ("sqrt(exp(log(b * b)))", 2),
        ("1e3 + .5 + 2.", 1002.5),
        (" a+b ", 2.5),
    ],
)
def test_it_computes_as_mathematics_does(text: str, value: float) -> None:
    assert Formula(text)(SCORES) == pytest.approx(value)


def test_it_names_what_it_needs() -> None:
    assert Formula("min(a, b) / sqrt(c_1)").names == {"a", "b", "c_1"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a +",
        "* a",
        "a b",
        "(a",
        "a)",
        "min()",
        "min a",
        "sqrt(a, b)",
        "a ** b",
        "a % b",
        "a.b",
        "__import__('os')",
        "a; b",
        "a = 1",
        "lambda: 1",
        "1 < 2",
        "a, b",
        "0x10",
        "²",
    ],
)
def test_what_is_not_a_formula_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Formula(text)
    assert (caught.value.code, caught.value.param) == (Code.GRADER_FORMULA_INVALID, "calculate_output")


@pytest.mark.parametrize(
    "text", ["(" * 5_000 + "1", "(" * (DEEPEST + 1) + "1" + ")" * (DEEPEST + 1), "1" * (LONGEST + 1), "2^" * 300 + "1"]
)
def test_a_formula_is_bounded(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Formula(text)
    assert caught.value.code == Code.GRADER_FORMULA_INVALID


def test_a_long_sum_and_many_signs_are_not_deep_recursion() -> None:
    assert Formula("+".join(["1"] * 499))({}) == 499
    assert Formula("-" * 998 + "1")({}) == 1


@pytest.mark.parametrize("text", ["1 / 0", "log(0)", "sqrt(-1)", "exp(1000)", "9 ^ 9 ^ 9", "(-1) ^ .5", "1e308 * 10"])
def test_a_formula_without_a_value_says_so(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Formula(text)(SCORES)
    assert caught.value.code == Code.GRADER_RESULT_INVALID


NUMBERS = st.floats(min_value=0, max_value=100, allow_nan=False).map(lambda number: f"{number:.3f}")
PYTHON = st.recursive(
    NUMBERS,
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})")
        | inner.map(lambda part: f"abs(-{part})")
    ),
    max_leaves=12,
)


@pytest.mark.exhaustive
@given(PYTHON)
def test_it_agrees_with_python(text: str) -> None:
    expected = eval(text)  # of a strategy of ours
    assert math.isclose(Formula(text)({}), expected, rel_tol=1e-9, abs_tol=1e-9)


@given(st.text(alphabet="ab01.+-*/^(), minsqrt", max_size=40))
def test_any_text_is_a_formula_or_an_error_with_a_code(text: str) -> None:
    try:
        Formula(text)(dict.fromkeys(Formula(text).names, 1.0))
    except InvalidRequest as error:
        assert error.code in {Code.GRADER_FORMULA_INVALID, Code.GRADER_RESULT_INVALID}

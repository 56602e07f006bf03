"""Python files become units whose measures are those of the checker, and whose digests ignore names and layout."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.checkers.python_checker import PythonChecker
from shared.checkers.unit import Unit, difficulty_of

SHARED = Path(__file__).resolve().parents[3] / "shared"
CHECKER = PythonChecker()
MODULE = '''\
"""Stacks."""

from __future__ import annotations

import os.path
from collections import deque as queue

LIMIT = 3


def wrapped(value):
    return value


@wrapped
def push(
    items: list[int],
    item: int,  # the new one
) -> int:
    # Before the body.
    """Append an item."""
    kept = queue(items)
    if len(kept) > LIMIT:
        raise ValueError(os.path.join("a", "b"))
    return item


class Stack:
    """Holds items."""

    def text(self) -> str:
        return """
      a line of its own
"""

    def size(self): return LIMIT
'''


def units_of(text: str) -> dict[str, Unit]:
    """Units by name; the module's name is empty."""
    found = CHECKER.units(text)
    assert not found.diagnostics
    return {unit.name: unit for unit in found.units}


def test_a_file_becomes_its_module_functions_classes_and_methods() -> None:
    units = CHECKER.units(MODULE).units
    assert [(unit.kind, unit.name) for unit in units] == [
        ("module", ""),
        ("function", "wrapped"),
        ("function", "push"),
        ("class", "Stack"),
        ("method", "Stack.text"),
        ("method", "Stack.size"),
    ]
    lines = MODULE.split("\n")
    for unit in units[1:]:
        assert unit.code.split("\n")[0] == lines[unit.first_line - 1].strip()
        assert unit.code.split("\n")[-1].strip() == lines[unit.last_line - 1].strip()


def test_a_signature_ends_where_the_docstring_or_the_body_begins() -> None:
    push = units_of(MODULE)["push"]
    assert push.signature == "@wrapped\ndef push(\n    items: list[int],\n    item: int,  # the new one\n) -> int:"
    assert push.docstring == "Append an item."
    assert push.code.split("\n")[push.head_lines] == "    kept = queue(items)"
    size = units_of(MODULE)["Stack.size"]
    assert (size.signature, size.head_lines) == ("def size(self):", 0)


def test_imports_and_names_of_the_module_that_a_unit_uses() -> None:
    push = units_of(MODULE)["push"]
    assert push.context == (
        "from __future__ import annotations\nimport os.path\nfrom collections import deque as queue"
    )
    assert push.uses == ("LIMIT", "wrapped")
    assert units_of("import a\n\ndef f(a):\n    return a\n")["f"].context == ""


def test_indentation_is_removed_from_code_and_not_from_strings() -> None:
    text = units_of(MODULE)["Stack.text"]
    assert text.code == 'def text(self) -> str:\n    return """\n      a line of its own\n"""'


def test_copies_with_other_names_comments_docstrings_and_layout_are_one() -> None:
    first = units_of('def f(a, b=1):\n    """Add."""\n    c = a + b  # the sum\n    return [x for x in c]\n')["f"]
    second = units_of("def total(one,\n          two=1):\n    s = (one + two)\n    return [i for i in s]\n")["total"]
    assert first.ast_hash == second.ast_hash


@pytest.mark.parametrize(
    "other",
    [
        "def f(a, b):\n    return b - a\n",
        "def f(a, b):\n    return a + b\n",
        "def f(a, b):\n    return a - c\n",
        "def f(a, b=1):\n    return a - b\n",
        "def f(a, b):\n    return a - 1\n",
        "def f(a, b):\n    return a.b\n",
        "async def f(a, b):\n    return a - b\n",
        "def f(a, b):\n    if a:\n        return a - b\n",
    ],
)
def test_other_trees_are_others(other: str) -> None:
    assert units_of("def f(a, b):\n    return a - b\n")["f"].ast_hash != units_of(other)["f"].ast_hash


def test_names_of_methods_and_imports_are_not_local() -> None:
    def hash_of(name: str) -> str:
        return units_of(f"class A:\n    def {name}(self):\n        return 1\n")["A"].ast_hash

    assert hash_of("read") != hash_of("write")


def test_tests_are_units_of_their_own_kind() -> None:
    text = "def test_a():\n    assert f()\n\nclass TestB:\n    def test_c(self):\n        pass\n\n    def help(self):\n        pass\n"
    kinds = {unit.name: unit.kind for unit in CHECKER.units(text).units if unit.name}
    assert kinds == {"test_a": "test", "TestB": "test", "TestB.test_c": "test", "TestB.help": "method"}


def test_definitions_within_functions_belong_to_these() -> None:
    assert list(units_of("def f():\n    def g():\n        pass\n    return g\n")) == ["", "f"]


@pytest.mark.parametrize("text", ["def f(:\n", "return 1\n", "a\0b", "x = " + "9" * 5000, "def f(a, a): pass"])
def test_a_file_that_does_not_compile_has_no_units(text: str) -> None:
    found = CHECKER.units(text)
    assert not found.units
    assert found.diagnostics[0].code == "syntax"
    assert found.diagnostics[0] == CHECKER.check(text).diagnostics[0]


def test_a_large_number_and_half_of_a_surrogate_pair_have_digests() -> None:
    assert units_of(f"def f():\n    return 0x{'f' * 5000}, '\\ud800'\n")["f"].ast_hash


@pytest.mark.parametrize("path", sorted(SHARED.rglob("*.py"))[::6], ids=lambda path: str(path.relative_to(SHARED)))
def test_measures_are_the_checkers_and_units_compile_with_their_context(path: Path) -> None:
    for unit in CHECKER.units(path.read_text()).units:
        check = CHECKER.check(unit.code)
        assert (unit.size, unit.constructs) == (check.size, check.constructs), unit.name
        names = "".join(f"{name} = None\n" for name in unit.uses)
        assert CHECKER.check("\n".join(filter(None, [unit.context, names + unit.code]))).compiles, unit.name


STATEMENTS = st.recursive(
    st.sampled_from(["x = 1", "f(x, y=[1, 2])", "del x", "assert x", "x += y[0].z", "x = [i for i in y if i]"]),
    lambda inner: st.builds(
        lambda head, body: "\n".join([head, *(f"    {line}" for one in body for line in one.split("\n"))]),
        st.sampled_from(["if x:", "for i in x:", "while x:", "with x as y:"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


@given(st.lists(STATEMENTS, min_size=1, max_size=6), STATEMENTS, st.integers(min_value=0))
def test_difficulty_never_falls_when_a_statement_is_added(body: list[str], added: str, place: int) -> None:
    def difficulty(statements: list[str]) -> int:
        lines = [f"    {line}" for statement in statements for line in statement.split("\n")]
        return units_of("\n".join(["def f(x, y):", *lines]) + "\n")["f"].difficulty

    place %= len(body) + 1
    assert difficulty(body) <= difficulty([*body[:place], added, *body[place:]])


@given(st.integers(0, 100_000), st.integers(0, 30), st.integers(0, 60))
def test_difficulty_is_from_one_to_ten_and_grows_with_each_measure(size: int, nesting: int, kinds: int) -> None:
    here = difficulty_of(size, nesting, kinds)
    more = [difficulty_of(size + 1, nesting, kinds), difficulty_of(size, nesting + 1, kinds)]
    assert 1 <= here <= min(*more, difficulty_of(size, nesting, kinds + 1)) <= 10


def test_the_table_of_difficulties() -> None:
    sizes = [0, 3, 4, 11, 12, 27, 28, 59, 60, 123, 124]
    assert [difficulty_of(size, 0, 0) for size in sizes] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert all(a <= b for a, b in pairwise(difficulty_of(size, 0, 0) for size in range(5000)))


def test_a_sum_of_hundreds_of_terms_is_divided() -> None:
    found = CHECKER.units("total = " + " + ".join(["part"] * 800))
    assert [unit.kind for unit in found.units] == ["module"]

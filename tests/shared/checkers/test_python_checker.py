"""Python: faults of syntax, names and types have diagnostics with positions; constructs are counted; nothing is
executed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.checkers.python_checker import CONSTRUCTS, PythonChecker, TypedPythonChecker

check = PythonChecker().check


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(:\n", "line 1: invalid syntax (syntax)"),
        ("x = 1\n  y = 2\n", "line 2: unexpected indent (syntax)"),
        ("return 3\n", "line 1: 'return' outside function (syntax)"),
        ("def f():\n    return y\n", "line 2: undefined name 'y' (name)"),
        ("print(missing)\n", "line 1: undefined name 'missing' (name)"),
        ("def f():\n    x += 1\n    x = 2\n\n\nx = 1\n", "line 2: local variable 'x'"),
        ("a\0b", "source code string cannot contain null bytes (syntax)"),
    ],
)
def test_a_fault_is_named_at_its_place(text: str, found: str) -> None:
    faults = check(text).diagnostics
    assert len(faults) == 1
    assert str(faults[0]).startswith(found)


@pytest.mark.parametrize("text", ["import os\n", "x = 1\nx = 2\n", "from math import *\nprint(sin(1))\n", ""])
def test_style_is_not_a_fault(text: str) -> None:
    assert check(text).compiles


def test_constructs_are_counted() -> None:
    found = check(
        '"""A module."""\nimport math\n\n\ndef area(radius: float) -> float:\n    """Docs."""\n    return math.pi * radius**2\n'
    )
    assert dict(found.constructs) == {
        "import": 1, "function": 1, "annotation": 2, "return": 1, "arithmetic": 2, "attribute": 1,
    }  # fmt: skip
    assert (found.size, found.richness) == (3, 0.6)


@pytest.mark.parametrize("body", ["pass", "...", '"""Later."""'])
def test_an_empty_body_is_not_code(body: str) -> None:
    assert check(f"def f():\n    {body}\n").size == 1


def test_a_text_is_not_executed(tmp_path: Path) -> None:
    assert check(f"open({str(tmp_path / 'made')!r}, 'w').close()\n").compiles
    assert not list(tmp_path.iterdir())


def test_a_signature_has_no_places() -> None:
    assert check("print(y)\n").signature == check("\n\nprint(y)\n").signature != check("print(z)\n").signature


@given(st.text(max_size=60))
def test_any_text_has_a_check(text: str) -> None:
    found = check(text)
    assert found.constructs.keys() <= CONSTRUCTS.keys() | {"decorator", "annotation"}
    assert found.compiles or not found.constructs or found.diagnostics[0].code == "name"


@pytest.mark.network
def test_types_are_mypys() -> None:
    typed = TypedPythonChecker().check
    wrong = typed("def f(a: int) -> str:\n    return a\n")
    assert [(fault.code, fault.line) for fault in wrong.diagnostics] == [("type", 2)]
    assert typed("import torch\n\nx: int = 3\n").compiles
    assert typed("print(y)\n").diagnostics[0].code == "name"

"""A hostile text can at most crash a child process: the caller gets a diagnostic, and the next text is checked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.checkers.contained import MAX_CHARACTERS, ContainedCheckers
from shared.checkers.python_checker import PythonChecker
from shared.errors import Code, InvalidRequest

pytestmark = pytest.mark.network

DEEP = {
    "unary": "-" * 100_000 + "1",
    "attributes": "a" + ".b" * 90_000,
    "brackets": "(" * 300 + ")" * 300,
    "additions": "1+" * 90_000 + "1",
    "lambdas": "lambda:" * 20_000 + "1",
    "branches": "if a:\n pass\n" + "elif a:\n pass\n" * 12_000,
}


@pytest.fixture(scope="module")
def checkers() -> Iterator[ContainedCheckers]:
    with ContainedCheckers(seconds=60) as running:
        yield running


@pytest.mark.parametrize("name", DEEP)
def test_a_text_that_is_nested_deep_costs_no_other_its_answer(checkers: ContainedCheckers, name: str) -> None:
    found = checkers.check("python", DEEP[name])
    assert found.diagnostics
    assert checkers.check("python", "x = 1\n").compiles


def test_json_that_is_nested_deep(checkers: ContainedCheckers) -> None:
    assert checkers.check("json", "[" * 100_000).diagnostics[0].code == "too_complex"
    assert checkers.check("sql", "SELECT 1").compiles


def test_it_is_the_check_of_the_checker(checkers: ContainedCheckers) -> None:
    text = "def f(a):\n    return [b for b in a] + c\n"
    found, direct = checkers.check("python", text), PythonChecker().check(text)
    assert (found.diagnostics, found.constructs, found.size) == (
        direct.diagnostics,
        dict(direct.constructs),
        direct.size,
    )


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_file_has_no_units_and_costs_no_other_its_units(checkers: ContainedCheckers, name: str) -> None:
    found = checkers.units("python", DEEP[name])
    assert found.diagnostics or found.units
    assert [unit.name for unit in checkers.units("python", "def f():\n    pass\n").units] == ["", "f"]


def test_units_are_those_of_the_checker(checkers: ContainedCheckers) -> None:
    text = Path(__file__).read_text()
    assert checkers.units("python", text) == PythonChecker().units(text)
    assert checkers.units("sql", "SELECT 1;").units[0].code == "SELECT 1;"
    assert checkers.units("sql", "SELEC 1;").diagnostics[0].code == "syntax"


def test_a_checker_that_does_not_divide_files_is_refused(checkers: ContainedCheckers) -> None:
    with pytest.raises(InvalidRequest, match="json does not divide") as caught:
        checkers.units("json", "1")
    assert caught.value.code == Code.CHECKER_NOT_FOUND


def test_a_long_file_is_not_divided(checkers: ContainedCheckers) -> None:
    assert checkers.units("python", "x" * (MAX_CHARACTERS + 1)).diagnostics[0].code == "too_long"


def test_a_long_text_is_not_sent(checkers: ContainedCheckers) -> None:
    fault = checkers.check("python", "x" * (MAX_CHARACTERS + 1)).diagnostics[0]
    assert (fault.code, fault.message) == ("too_long", "it has 200001 characters; at most 200000 can be checked")


def test_a_text_that_takes_long_has_its_time_limit() -> None:
    with ContainedCheckers(seconds=0.001) as hurried:
        assert hurried.check("python", "x = 1\n" * 20_000).diagnostics[0].code == "time_limit"


def test_a_child_that_was_killed_is_replaced(checkers: ContainedCheckers) -> None:
    checkers.check("json", "1")
    child = checkers._child
    assert child
    child.process.kill()
    child.process.wait()
    assert checkers.check("json", "1").compiles


def test_several_threads_get_their_own_answers(checkers: ContainedCheckers) -> None:
    sizes: dict[int, int] = {}

    def work(count: int) -> None:
        for _ in range(10):
            sizes[count] = checkers.check("json", str([1] * count)).size

    threads = [threading.Thread(target=work, args=(count,)) for count in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == {count: count + 1 for count in range(1, 6)}


def test_an_unknown_language_is_refused_before_any_process_starts() -> None:
    with ContainedCheckers() as none, pytest.raises(InvalidRequest) as refused:
        none.check("cobol", "")
    assert refused.value.code == Code.CHECKER_NOT_FOUND
    assert "json, python, python-types, sql" in refused.value.message
    assert none._child is None

"""A run of the whole suite fails if a test that the capability matrix names did not pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from api.capabilities import CAPABILITIES
from tests.support.proofs import WHOLE, Proofs, is_whole_run

NAMED = {"row": ("tests/a.py::test_one", "tests/a.py::test_two")}


def noted(*reports: tuple[str, str, str]) -> Proofs:
    proofs = Proofs()
    for nodeid, when, outcome in reports:
        proofs.pytest_runtest_logreport(report(nodeid, when, outcome))
    return proofs


def report(nodeid: str, when: Any, outcome: Any, reason: str = "needs an NVIDIA GPU") -> pytest.TestReport:
    place = ("tests/a.py", 1, f"Skipped: {reason}") if outcome == "skipped" else None
    return pytest.TestReport(nodeid, ("tests/a.py", 1, "test"), {}, outcome, place, when)


def test_tests_that_passed_prove_their_row() -> None:
    proofs = noted(
        ("tests/a.py::test_one", "setup", "passed"),
        ("tests/a.py::test_one", "call", "passed"),
        ("tests/a.py::test_two[x]", "call", "passed"),
        ("tests/a.py::test_two[y]", "call", "passed"),
        ("tests/a.py::test_three", "call", "failed"),
    )
    assert proofs.unproven(NAMED) == []


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        ([], "not run"),
        ([("tests/a.py::test_two", "setup", "passed")], "not run"),
        ([("tests/a.py::test_two", "setup", "skipped")], "skipped"),
        ([("tests/a.py::test_two", "call", "skipped")], "skipped"),
        ([("tests/a.py::test_two", "setup", "failed")], "failed"),
        (
            [("tests/a.py::test_two", "call", "passed"), ("tests/a.py::test_two", "teardown", "failed")],
            "failed, passed",
        ),
        (
            [("tests/a.py::test_two[x]", "call", "passed"), ("tests/a.py::test_two[y]", "call", "failed")],
            "failed, passed",
        ),
    ],
)
def test_any_other_test_proves_nothing(reports: list[tuple[str, str, str]], reason: str) -> None:
    proofs = noted(("tests/a.py::test_one", "call", "passed"), *reports)
    assert proofs.unproven(NAMED) == [f"row: tests/a.py::test_two: {reason}"]


def test_values_left_out_for_time_leave_the_others_as_the_proof() -> None:
    left_out = "MENS_TEST_MINUTES leaves no time for this long test"
    proofs = noted(("tests/a.py::test_one[x]", "call", "passed"))
    for nodeid in ("tests/a.py::test_one[y]", "tests/a.py::test_two[x]"):
        proofs.pytest_runtest_logreport(report(nodeid, "setup", "skipped", left_out))
    assert proofs.unproven(NAMED) == ["row: tests/a.py::test_two: not run"]


def finished(config: Any) -> Any:
    """A session that has ended well, after its plugin has looked at it."""
    session = SimpleNamespace(config=config, exitstatus=pytest.ExitCode.OK)
    Proofs().pytest_sessionfinish(session)
    return session.exitstatus


def config_of(**options: Any) -> Any:
    chosen: dict[str, Any] = {
        "markexpr": "", "keyword": "", "maxfail": 0, "lf": False, "collectonly": False, "deselect": None
    }  # fmt: skip
    source = options.pop("args_source", pytest.Config.ArgsSource.TESTPATHS)
    return SimpleNamespace(option=SimpleNamespace(**chosen | options), args_source=source)


def test_a_whole_run_without_the_proofs_fails() -> None:
    assert any(row.proof.tests for row in CAPABILITIES.rows)
    assert finished(config_of()) == pytest.ExitCode.TESTS_FAILED
    for marks in WHOLE:
        assert finished(config_of(markexpr=marks)) == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    "chosen",
    [
        {"markexpr": "not vllm"},
        {"markexpr": "long"},
        {"markexpr": WHOLE[0], "keyword": "one"},
        {"keyword": "one"},
        {"maxfail": 1},
        {"lf": True},
        {"collectonly": True},
        {"deselect": ["tests/a.py"]},
        {"args_source": pytest.Config.ArgsSource.ARGS},
    ],
)
def test_a_part_of_the_suite_is_not_judged(chosen: dict[str, Any]) -> None:
    assert not is_whole_run(config_of(**chosen))
    assert finished(config_of(**chosen)) == pytest.ExitCode.OK


def test_this_run_is_watched(pytestconfig: pytest.Config) -> None:
    assert isinstance(pytestconfig.pluginmanager.get_plugin("proofs"), Proofs)

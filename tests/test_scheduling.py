"""How `make test` distributes the tests: those that share servers stay together, and long ones run first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.scheduling import LAST, LONGEST, TOGETHER, SharedServers, TimeLimit, rank, unit_of

ROOT = Path(__file__).resolve().parents[1]


def test_what_is_named_exists() -> None:
    assert [path for path in (*TOGETHER, *LONGEST, *LAST) if not (ROOT / path).exists()] == []


def test_files_that_share_servers_are_one_unit() -> None:
    assert unit_of("tests/system/test_aliases.py") == unit_of("tests/system/test_chaos.py") == "tests/system/"
    assert unit_of("tests/system/test_hostile.py") == "tests/system/test_hostile.py"
    assert unit_of("tests/api/test_server.py") == "tests/api/test_server.py"


def test_longest_units_come_first() -> None:
    paths = [
        "tests/system/test_hostile.py", "tests/api/test_server.py", "tests/vllm/test_unload.py", "tests/system/test_demo.py",
    ]  # fmt: skip
    assert sorted(paths, key=rank) == paths[::-1]


def test_servers_of_a_folder_end_before_the_first_test_outside_it() -> None:
    events: list[str] = []
    servers = SharedServers()
    for number, folder in enumerate(("tests/system", "tests/system", "tests", "tests/vllm")):
        servers.pytest_fixture_setup(
            fixture(f"{number} of {folder}", folder, events), cast("pytest.FixtureRequest", None)
        )
    for following in ("tests/vllm/test_unload.py::test_a", "tests/test_docs.py::test_b"):
        teardown = servers.pytest_runtest_teardown(cast("pytest.Item", SimpleNamespace(nodeid=following)))
        next(teardown)
        assert next(teardown, None) is None
        events.append(following)
    assert events == [
        "1 of tests/system", "0 of tests/system", "tests/vllm/test_unload.py::test_a",
        "3 of tests/vllm", "tests/test_docs.py::test_b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("minutes", "seconds", "path", "mark", "runs"),
    [
        (1, 29, "tests/system/test_demo.py", "long", True),
        (1, 31, "tests/system/test_demo.py", "long", False),
        (1, 59, LAST[0], "long", True),
        (1, 61, LAST[0], "long", False),
        (1, 61, LAST[0], "torch", True),
        (None, 1e9, "tests/system/test_demo.py", "long", True),
    ],
)
def test_no_long_test_begins_after_the_limit(
    minutes: int | None, seconds: float, path: str, mark: str, *, runs: bool
) -> None:
    now = iter([0.0, seconds])
    limit = TimeLimit(minutes, lambda: next(now))
    marked = SimpleNamespace(nodeid=f"{path}::test_a", get_closest_marker=lambda name: name == mark)
    item = cast("pytest.Item", marked)
    if runs:
        limit.pytest_runtest_setup(item)
    else:
        with pytest.raises(pytest.skip.Exception, match="MENS_TEST_MINUTES leaves no time"):
            limit.pytest_runtest_setup(item)


def fixture(name: str, folder: str, events: list[str]) -> Any:
    return SimpleNamespace(baseid=folder, scope="session", finish=lambda request: events.append(name))

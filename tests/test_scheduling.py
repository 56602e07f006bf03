"""How `make test` spreads the tests: what shares servers stays together, and what takes long comes first."""

from __future__ import annotations

from pathlib import Path

from tests.support.scheduling import LONGEST, TOGETHER, rank, unit_of

ROOT = Path(__file__).resolve().parents[1]


def test_what_is_named_exists() -> None:
    assert [path for path in (*TOGETHER, *LONGEST) if not (ROOT / path).exists()] == []


def test_files_that_share_servers_are_one_unit() -> None:
    assert unit_of("tests/system/test_aliases.py") == unit_of("tests/system/test_chaos.py") == "tests/system/"
    assert unit_of("tests/system/test_hostile.py") == "tests/system/test_hostile.py"
    assert unit_of("tests/api/test_server.py") == "tests/api/test_server.py"


def test_longest_units_come_first() -> None:
    paths = ["tests/api/test_server.py", "tests/vllm/test_unload.py", "tests/system/test_demo.py"]
    assert sorted(paths, key=rank) == paths[::-1]

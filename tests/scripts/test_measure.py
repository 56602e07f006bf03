"""`make measure`: each measure counts what its name says."""

from __future__ import annotations

from scripts.measure import lists, read_source, repeated_classes, table, tiers_of_shared

TEXT = '''"""A module."""
# A comment.
import shared.second
from shared.third import Known


class Reader:
    def read(self):
        return _inner() + _shared() + _shared()  # and another one


def _inner():
    text = "# not a comment"
    return text


def _shared():
    return 1
'''


def test_module_is_measured() -> None:
    file = read_source("api/first.py", TEXT)
    assert (file.module, file.lines, file.comments, file.functions) == ("api.first", 18, 2, (3, 2, 2))
    assert (file.single_callers, file.classes) == (("_inner",), ("Reader",))
    assert {"shared.second", "shared.third"} <= file.imports


def test_repeated_class_is_found_over_all_tiers() -> None:
    files = [read_source("api/first.py", TEXT), read_source("cli/second.py", TEXT)]
    assert repeated_classes(files) == {"Reader": ["api/first.py", "cli/second.py"]}
    assert repeated_classes(files[:1]) == {}


def test_tiers_reach_a_module_through_others() -> None:
    files = [
        read_source("shared/__init__.py", ""),
        read_source("shared/second.py", "from shared import fourth"),
        read_source("shared/third.py", ""),
        read_source("shared/fourth.py", ""),
        read_source("shared/alone.py", ""),
        read_source("api/first.py", TEXT),
        read_source("worker/first.py", "import shared.second"),
    ]
    assert tiers_of_shared(files) == {
        "shared.second": {"api", "worker"},
        "shared.third": {"api"},
        "shared.fourth": {"api", "worker"},
        "shared.alone": set(),
    }


def test_report_has_every_measure() -> None:
    files = [read_source(f"{package}/first.py", TEXT + "\n" * 300) for package in ("api", "worker", "serving", "cli")]
    files += [
        read_source(f"{package}/first.py", TEXT)
        for package in ("shared", "corpus", "openai_migration", "bench", "scripts")
    ]
    lines = [*table(files), *lists(files)]
    assert "all                    9    1,362         27         2/3       33.3%      1.3%" in lines
    assert "\nfiles over 300 lines: 4 (target: none)" in lines
    assert "  shared.first " in lines

"""`make measure`: each measure counts what its name says."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

from scripts.measure import LONGEST_FILE, lists, read_source, repeated_classes, sources, table, tiers_of_shared
from tests.support.files_run import CHAT, JOB

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


def written_figures() -> dict[str, list[float]]:
    """The numbers of the last column of CONTRIBUTING's table, by measure."""
    text = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([\d][^|]*) \|$", text, re.MULTILINE)
    return {
        name: [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", found)]
        for name, found in rows
    }


def test_figures_of_contributing_are_those_of_the_source() -> None:
    files = sources()
    lengths = [length for file in files for length in file.functions]
    lines = sum(file.lines for file in files)
    measured = {
        "lines of source": [lines],
        "lines of a function": [statistics.median(lengths), statistics.quantiles(lengths, n=10)[-1]],
        "private functions": [100 * sum(len(file.single_callers) for file in files) / len(lengths)],
        "lines with a comment": [100 * sum(file.comments for file in files) / lines],
        "names that": [len(repeated_classes(files))],
        "files over": [sum(file.lines > LONGEST_FILE for file in files)],
        "modules of": [sum(len(tiers) < 2 for tiers in tiers_of_shared(files).values())],
        "files that a chat": [CHAT],
        "files that the creation": [JOB],
    }
    written = written_figures()
    for name, values in measured.items():
        [figures] = [figures for measure, figures in written.items() if measure.startswith(name)]
        for value, figure in zip(values, figures, strict=True):
            assert abs(value - figure) <= max(0.05 * value, 0.1), (
                f"{name}: {figure} is written, {value:.1f} is measured"
            )

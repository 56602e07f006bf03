"""The example of docs/extending.md is installed as a package, and found by its language's name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from shared.checkers.contained import ContainedCheckers
from shared.checkers.languages import installed_languages, load_checker, require_language
from shared.errors import Code, InvalidRequest, Unavailable

ROOT = Path(__file__).resolve().parents[3]
RECIPE = (ROOT / "docs" / "extending.md").read_text().partition("## A language checker")[2]


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe's example as an installed package."""
    block = re.search(r"```python\n(.*?)```", RECIPE, re.DOTALL)
    assert block
    (tmp_path / "brackets_checker.py").write_text(block[1])
    information = tmp_path / "brackets_checker-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: brackets-checker\nVersion: 1.0\n")
    entry = re.search(r'^#   brackets = "(.*)"$', block[1], re.MULTILINE)
    assert entry
    (information / "entry_points.txt").write_text(
        f"[mens.checkers]\nbrackets = {entry[1]}\nbroken = {entry[1].replace('Brackets', 'Absent')}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


def test_a_plug_in_is_found_by_its_entry_point(plug_in: Path) -> None:
    assert "brackets" in installed_languages()
    checker = load_checker("brackets")
    assert checker.check("([])").constructs == {"round": 1, "square": 1}
    assert str(checker.check("(]").diagnostics[0]) == "line 1: ] closes nothing (syntax)"


@pytest.mark.network
def test_a_plug_in_runs_in_the_child_and_its_own_fault_is_said(plug_in: Path) -> None:
    with ContainedCheckers(seconds=60) as checkers:
        assert checkers.check("brackets", "([])").size == 2
        assert not checkers.check("brackets", "(").compiles
        with pytest.raises(Unavailable) as failed:
            checkers.check("broken", "(")
        assert failed.value.code == Code.CHECKER_FAILED
        assert "AbsentChecker" in failed.value.message
        assert checkers.check("brackets", "()").compiles


def test_without_the_package_there_is_no_such_language() -> None:
    for language in ("brackets", "", "../x", "x" * 300):
        with pytest.raises(InvalidRequest):
            require_language(language)

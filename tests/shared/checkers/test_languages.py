"""The example of docs/extending.md, installed as a package, is found by its language's name."""

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
HOSTILE = """
import os, sys, time
from shared.checkers.checker import Check

class HostileChecker:
    def check(self, text):
        if text == "memory":
            bytearray(3 << 30)
        elif text == "exit":
            os._exit(3)
        elif text == "sleep":
            time.sleep(60)
        elif text == "file":
            with open(__file__ + ".written", "w") as file:
                file.write("x" * 100)
        elif text == "raise":
            raise KeyError("lost")
        print("this is no answer")
        os.write(1, b"nor is this")
        return Check((), {"keys": sum("KEY" in name or "MENS" in name for name in os.environ)}, 1)
"""


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
        "hostile = hostile_checker:HostileChecker\n"
    )
    (tmp_path / "hostile_checker.py").write_text(HOSTILE)
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


@pytest.mark.network
def test_what_a_checker_does_wrong_costs_no_other_text_its_answer(
    plug_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_API_KEY", "secret")
    with ContainedCheckers(seconds=60) as checkers:
        for text, code in (("memory", "too_complex"), ("exit", "too_complex"), ("sleep", "time_limit")):
            # The child's start counts too, and takes a busy machine long.
            checkers._seconds = 1 if text == "sleep" else 60
            assert [fault.code for fault in checkers.check("hostile", text).diagnostics] == [code]
            checkers._seconds = 60
            assert checkers.check("hostile", "fine").size == 1
        for text in ("file", "raise"):
            with pytest.raises(Unavailable) as failed:
                checkers.check("hostile", text)
            assert failed.value.code == Code.CHECKER_FAILED
        found = checkers.check("hostile", "fine")
    assert (found.compiles, found.constructs) == (True, {"keys": 0}), "it prints, and sees no secrets"


def test_without_the_package_the_language_is_unknown() -> None:
    for language in ("brackets", "", "../x", "x" * 300):
        with pytest.raises(InvalidRequest):
            require_language(language)

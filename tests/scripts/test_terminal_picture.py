"""Pictures of a command's output: what they show and omit; a failed command gives none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts.terminal_picture import draw, main, without


def words_of(svg: str) -> str:
    return " ".join("".join(ET.fromstring(svg).itertext()).replace("\xa0", " ").split())


def test_picture_holds_the_command_and_its_output(tmp_path: Path) -> None:
    main([str(tmp_path / "a" / "b.svg"), "--shown", "make it", "--", sys.executable, "-c", "print('<one> & two')"])
    svg = (tmp_path / "a" / "b.svg").read_text()
    assert "$ make it <one> & two" in words_of(svg)


def test_picture_loads_nothing_and_is_equal_for_equal_output() -> None:
    svg = draw("a", ["b"])
    assert "url(http" not in svg and "@font-face" not in svg and "https://cdn" not in svg
    assert svg == draw("a", ["b"])


def test_omitted_lines_become_one_ellipsis() -> None:
    assert list(without(["a", "wait 1", "wait 2", "b", "wait 3"], "^wait")) == ["a", "…", "b", "…"]
    assert list(without(["a", "b"], "")) == ["a", "b"]


def test_failed_command_gives_no_picture(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        main([str(tmp_path / "a.svg"), "--", sys.executable, "-c", "raise SystemExit(3)"])
    assert not (tmp_path / "a.svg").exists()

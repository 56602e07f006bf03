"""Compilers are found on the machine and in installed packages; an entry point that is not a compiler is refused."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.compilers.compiler import Compiler, find_compiler
from shared.errors import Code, Unavailable
from tests.support.compilers import WITH_GCC

RECIPE = (Path(__file__).resolve().parents[3] / "docs" / "extending.md").read_text().partition("## A compiler")[2]
PACKAGE = f"""
from shared.compilers.compiler import Compiler

def make():
    return Compiler(({sys.executable!r}, "main.py"), "main.py")

def make_nothing():
    return None
"""


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compilers_of_a_package.py").write_text(PACKAGE)
    information = tmp_path / "compilers_of_a_package-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: compilers-of-a-package\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[mens.compilers]\nsnake = compilers_of_a_package:make\nnothing = compilers_of_a_package:make_nothing\n"
        "absent = compilers_of_a_package:absent\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("plug_in")
def test_a_packages_compiler_is_found_by_its_entry_point() -> None:
    assert find_compiler("snake") == Compiler((sys.executable, "main.py"), "main.py")
    for language, words in (("nothing", "returns a NoneType"), ("absent", "AttributeError")):
        with pytest.raises(Unavailable, match=words) as failed:
            find_compiler(language)
        assert failed.value.code == Code.CHECKER_FAILED


def test_the_recipes_example_makes_a_compiler() -> None:
    block = re.search(r"```python\n(.*?)```", RECIPE, re.DOTALL)
    assert block
    names: dict[str, Any] = {}
    exec(block[1], names)
    assert names["make"]().command[-1] == names["make"]().file == "main.rs"


def test_what_nobody_offers_is_not_found() -> None:
    for language in ("snake", "cobol", "", "../c", "x" * 300):
        assert find_compiler(language) is None


@WITH_GCC
def test_gcc_is_found_where_it_is_installed() -> None:
    compiler = find_compiler("c")
    assert compiler
    assert Path(compiler.command[0]) == compiler.executables[0]
    assert Path(compiler.command[0]).resolve() in compiler.executables, "the links' end is bound too"


def test_without_gcc_no_compiler_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "path", [*sys.path, os.devnull])  # what was found is kept by this
    assert find_compiler("c") is None


@pytest.mark.parametrize(
    ("command", "file", "folders"),
    [
        ((), "main.c", ()),
        (("gcc", "main.c"), "main.c", ()),
        (("/usr/bin/gcc", "main.c"), "../main.c", ()),
        (("/usr/bin/gcc", "main.c"), "", ()),
        (("/usr/bin/gcc", "main.c"), "..", ()),
        (("/usr/bin/gcc", "main.c"), "main.c", ("lib",)),
    ],
)
def test_paths_that_are_left_open_are_refused(command: tuple[str, ...], file: str, folders: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):
        Compiler(command, file, folders)

"""What ``mens up`` says: commands that work when they are copied."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cli.connection import Connection
from cli.stack import Stack
from cli.up import command, print_usage


def said(home: Path, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The commands that are printed for an installation in a folder, each in its words."""
    stack = Stack(home, "tiny")
    stack.connection = Connection("http://127.0.0.1:8000", "mens-secret")
    print_usage(stack, "tiny")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ") and "mens " in line]
    assert len(lines) == 4
    return [shlex.split(line) for line in lines]


def test_commands_name_a_home_that_is_not_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "a [b] c"
    assert {words[0] for words in said(home, capsys)} == {f"MENS_HOME={home}"}


def test_the_default_home_needs_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, *_ = said(tmp_path / ".mens", capsys)
    assert words[0].endswith("mens")
    assert Path(words[2]).is_file(), "the example is named from where the user is"


def test_a_program_that_is_not_on_the_path_is_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = shlex.split(command(tmp_path))[-1]
    assert Path(program).is_file()

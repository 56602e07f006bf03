"""Compilers for tests: Python as a compiler that parses its text, and as one that its text has taken over."""

from __future__ import annotations

import secrets
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shared.compilers.compiler import Compiler, find_compiler
from shared.compilers.probe import LEVEL, TAKEN_OVER
from shared.sandbox.probe import missing

CONTAINED = pytest.mark.skipif(bool(missing(LEVEL)), reason=missing(LEVEL))
WITH_GCC = pytest.mark.skipif(find_compiler("c") is None, reason="gcc is not installed")
READS = Compiler((sys.executable, "-s", "-P", "-m", "py_compile", "main.py"), "main.py", TAKEN_OVER.folders)


def taken_over() -> Compiler:
    """A compiler that executes its text, under a unique process name."""
    name = f"main_{secrets.token_hex(8)}.py"
    return replace(TAKEN_OVER, command=(*TAKEN_OVER.command[:-1], name), file=name)


def processes_of(compiler: Compiler) -> list[int]:
    """Processes on this machine whose command line is a compiler's."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if compiler.file.encode() in words:
            found.append(int(folder.name))
    return found

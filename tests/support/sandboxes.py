"""Sandbox levels that this machine supports, and programs that run as another user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.sandbox.environment import ROOT, open_to_others
from shared.sandbox.levels import LEVELS, Level
from shared.sandbox.probe import missing

NOBODY = 54_321


def level_parameters() -> list[object]:
    """Every level as a parameter of a test; a level that this machine does not support is skipped with the reason."""
    return [
        pytest.param(level, marks=[pytest.mark.skipif(bool(missing(level)), reason=missing(level))]) for level in LEVELS
    ]


def python_of_nobody() -> str | None:
    """A Python that every user can run: this one, or the system's."""
    paths = [Path(sys.executable), Path(sys.base_prefix, "lib")]
    if all(map(open_to_others, paths)):
        return sys.executable
    system = Path("/usr/bin/python3")
    return str(system) if system.exists() else None


def run_as_nobody(program: str, *arguments: str, level: Level) -> subprocess.CompletedProcess[str]:
    """Run a Python program as a user without privileges; only as root."""
    python = python_of_nobody()
    if os.geteuid() or python is None:
        pytest.skip("only root can become another user" if os.geteuid() else "no Python here that other users may run")
    return subprocess.run(
        [python, "-B", "-c", program, level, *arguments],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OF_THE_PARENT": "secret"},
        capture_output=True,
        text=True,
        check=False,
    )

"""Levels of the sandbox that this machine has, and a run of the same code without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.sandbox.attacks import Target
from shared.sandbox.environment import ROOT, open_to_others
from shared.sandbox.levels import LEVELS, Level
from shared.sandbox.probe import missing

NOBODY = 54_321

_UNCONFINED = """
import json, os, sys
request = json.load(sys.stdin)
os.dup2(1, 3)
names = {}
exec(request["source"], names)
os.write(3, json.dumps({"score": names["grade"](None, request["item"])}).encode())
"""


def level_parameters() -> list[object]:
    """Every level as a parameter of a test; one that this machine lacks is skipped, with what it lacks."""
    return [
        pytest.param(level, marks=[pytest.mark.skipif(bool(missing(level)), reason=missing(level))]) for level in LEVELS
    ]


def grade_unconfined(source: str, item: Target) -> float:
    """What a source's ``grade`` returns in a plain child process, which inherits a file as a careless parent would leave it."""
    with Path(os.devnull).open() as inherited:
        found = subprocess.run(
            [sys.executable, "-c", _UNCONFINED],
            input=json.dumps({"source": source, "item": item}),
            capture_output=True,
            text=True,
            check=True,
            pass_fds=(inherited.fileno(),),
            cwd=item["folder"],
        )
    return float(json.loads(found.stdout)["score"])


def python_of_nobody() -> str | None:
    """A Python that any user may run: this one, or the system's."""
    paths = [Path(sys.executable), Path(sys.base_prefix, "lib")]
    if all(map(open_to_others, paths)):
        return sys.executable
    system = Path("/usr/bin/python3")
    return str(system) if system.exists() else None


def run_as_nobody(program: str, *arguments: str, level: Level) -> subprocess.CompletedProcess[str]:
    """Run a Python program as a user without rights; from root only."""
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

"""The stages are those of the plan and of the documentation, and their parts are those of the programs."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.acceptance.budget import SECONDS
from bench.acceptance.stages import KERNELS, PARITY, SCANS, STAGES

ROOT = Path(__file__).resolve().parents[3]


def test_no_stage_takes_longer_than_nine_minutes() -> None:
    assert SECONDS <= 9 * 60


def test_the_page_has_every_stage_and_names_no_other() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    section = page.partition("\n## The first hour on a new card\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(STAGES)
    branches = page.partition("\n## Code that only runs on a GPU")[2]
    named = set(re.findall(r"stage `(\w+)`", branches))
    assert named
    assert named <= STAGES.keys()


def test_they_are_listed_with_what_they_need() -> None:
    command = [sys.executable, "-m", "bench.gpu", "--acceptance", "list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(STAGES)
    assert all("proves: " in line and "needs: " in line for line in lines[1:])


def test_goals_are_not_judged_on_a_cpu() -> None:
    command = [sys.executable, "-m", "bench.gpu", "--acceptance", "loop", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, "--smoke" in done.stderr) == (1, True)


@pytest.mark.torch
@pytest.mark.parametrize(("module", "names"), [("parity", PARITY), ("scan", SCANS), ("kernels", KERNELS)])
def test_parts_of_a_program_are_those_of_its_stage(module: str, names: tuple[str, ...]) -> None:
    assert tuple(importlib.import_module(f"bench.acceptance.{module}").PARTS) == names

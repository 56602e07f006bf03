"""A run prints a failure when it happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = """
from tests.support.failures import Failures

def pytest_configure(config):
    config.pluginmanager.register(Failures(config))
"""
TESTS = """
def test_wrong():
    assert 1 == 2

def test_right():
    print("the next test")
"""


def test_a_failure_is_printed_before_the_next_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_one.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )
    before, separator, _ = done.stdout.partition("the next test")
    assert separator, done.stdout + done.stderr
    assert "test_wrong failed (call):" in before
    assert "assert 1 == 2" in before

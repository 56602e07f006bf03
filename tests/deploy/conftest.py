"""Helm for the chart's tests."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.helm import ROOT, helm_binary

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def helm() -> Run:
    binary = helm_binary()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)

    return run

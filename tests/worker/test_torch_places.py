"""The unit tests of the worker import no torch, neither when they are collected nor when they run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.conftest import TORCH_PLACES

COLLECT = """
import sys
import pytest
code = pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", "-m", "not torch", sys.argv[1]])
sys.exit(code or ("torch is loaded" if "torch" in sys.modules else 0))
"""


def test_every_place_that_loads_torch_exists() -> None:
    assert [str(place) for place in TORCH_PLACES if not place.exists()] == []


@pytest.mark.torch  # the unit tier looks at itself (tests/conftest.py), and has no time to be collected twice
def test_unit_tier_is_collected_without_torch() -> None:
    """The fixture `torch_is_not_loaded` checks that its tests run without torch."""
    command = [sys.executable, "-c", COLLECT, str(Path(__file__).parent)]
    collected = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert collected.returncode == 0, collected.stdout[-2000:] + collected.stderr[-2000:]

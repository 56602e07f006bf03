"""The acceptance stages on a GPU, at their smallest size; `test_smoke.py` runs them on a CPU."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.acceptance.stages import STAGES
from tests.support.bench_runs import run_smoke

pytestmark = [pytest.mark.gpu, pytest.mark.bench, pytest.mark.timeout(660)]


@pytest.fixture(scope="module", autouse=True)
def card() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")


@pytest.mark.parametrize("stage", STAGES)
def test_stage_runs_on_a_card(tmp_path: Path, stage: str) -> None:
    if stage == "scan" and not find_spec("fla"):
        pytest.skip("flash-linear-attention is not installed")
    printed = run_smoke(tmp_path, "bench.gpu", "--acceptance", stage)
    assert [line for line in printed if line.startswith("{") and json.loads(line)["smoke"]]

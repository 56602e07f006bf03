"""The kernels compute the same as torch: `parity.py`, in Triton's interpreter, and on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.system.fetched import triton

PARITY = Path(__file__).with_name("parity.py")


def agree(**environment: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3", str(PARITY)]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:] + done.stderr[-2000:]


def test_kernels_agree_with_torch_in_tritons_interpreter() -> None:
    agree(TRITON_INTERPRET="1", PYTHONPATH=str(triton()))


@pytest.mark.gpu
def test_kernels_agree_with_torch_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no accelerator")
    agree(TRITON_INTERPRET="0")

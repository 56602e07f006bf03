"""The kernels compute the same as torch: `parity.py` and `delta_parity.py`, in Triton's interpreter, and on a GPU. They
compile for GPUs: `compilation.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.system.fetched import triton

PARITY = ["parity.py", "delta_parity.py"]


def agree(file: str, **environment: str) -> None:
    path = Path(__file__).with_name(file)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3", str(path)]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.parametrize("file", PARITY)
def test_kernels_agree_with_torch_in_tritons_interpreter(file: str) -> None:
    agree(file, TRITON_INTERPRET="1", PYTHONPATH=str(triton()))


def test_kernels_compile_for_gpus(tmp_path: Path) -> None:
    agree("compilation.py", PYTHONPATH=str(triton()), TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.gpu
@pytest.mark.parametrize("file", PARITY)
def test_kernels_agree_with_torch_on_a_gpu(file: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no accelerator")
    agree(file, TRITON_INTERPRET="0")

"""Torch's account of this machine's GPUs, from a child process: a worker's task never loads torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

PROGRAM = Path(__file__).with_name("torch_program.py")
ANSWER_SECONDS = 300.0
"""Time limit for an answer: the first import of torch from a slow disk takes minutes."""


class TorchGpu(BaseModel):
    """A GPU that torch finds.

    Attributes:
        capability: its compute capability, e.g. 8.9 as (8, 9).
        memory_bytes: memory of the GPU, or of the part of it that is used (MIG).
        uuid: the driver's name of it.
    """

    model_config = ConfigDict(frozen=True)
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    uuid: str = ""

    @property
    def is_part(self) -> bool:
        """Return true for a part of a GPU (MIG)."""
        return " MIG " in self.name


class TorchReport(BaseModel):
    """The answer of `torch_program.py`.

    Attributes:
        version: version of torch; empty if it could not be loaded.
        cuda: CUDA version of the build; None: it was built without CUDA.
        kernels: architectures that it has kernels for, e.g. ``sm_90``, ``compute_120``.
        gpus: in CUDA's order.
        warning: torch's warnings, or the reason why it did not answer.
    """

    model_config = ConfigDict(frozen=True)
    version: str = ""
    cuda: str | None = None
    kernels: tuple[str, ...] = ()
    gpus: tuple[TorchGpu, ...] = ()
    warning: str = ""


def ask_torch() -> TorchReport:
    """Return torch's answer, from a child process."""
    # With -P, a module in the working folder or in this package's folder cannot hide torch.
    command = [sys.executable, "-P", str(PROGRAM)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
        return TorchReport.model_validate_json(done.stdout)
    except subprocess.CalledProcessError as error:
        return TorchReport(warning=(error.stderr or str(error)).strip().rpartition("\n")[2])
    except (OSError, subprocess.SubprocessError, ValidationError) as error:
        return TorchReport(warning=str(error).partition("\n")[0])

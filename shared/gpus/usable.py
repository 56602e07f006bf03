"""The GPUs that an adapter can be trained on here, and the reason why a GPU that the driver shows is not among them.

On a machine without a GPU both are empty, and torch is not loaded.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from shared.gpus.driver import Gpu, query_gpus, visible_gpus
from shared.gpus.torch_report import TorchGpu, TorchReport, ask_torch

LEAST_DRIVER = {"13": "580", "12": "525", "11": "450"}
"""Major version of CUDA → oldest driver that runs it (NVIDIA's release notes of the CUDA toolkit, minor-version
compatibility)."""
BFLOAT16_CAPABILITY = (8, 0)
"""Ampere. Adapters are trained in bfloat16; half precision would need scaled losses, which the trainer does not have."""


@dataclass(frozen=True, slots=True)
class MachineGpus:
    """Usable GPUs, or the reason for their absence.

    Attributes:
        gpus: usable GPUs, in CUDA's order.
        free_bytes: the smallest free memory of any of them; None: unknown.
        fault: sentences with the reason why none of the GPUs that the driver shows is usable, and the remedy.
    """

    gpus: tuple[TorchGpu, ...] = ()
    free_bytes: int | None = None
    fault: str | None = None


NO_GPU = MachineGpus()
# The first caller waits for the child process, which takes seconds; the others get its answer.
_lock = threading.Lock()
_answers: list[TorchReport] = []


def find_gpus(ask: Callable[[], TorchReport] | None = None) -> MachineGpus:
    """Return the usable GPUs of this machine.

    Args:
        ask: returns torch's report, in a process that has loaded torch; None: a child process reports, once.
    """
    if ask is None and not visible_gpus():
        return NO_GPU
    torch = ask() if ask else _torch_report()
    return judge_gpus(torch, query_gpus()) if torch.gpus or visible_gpus() else NO_GPU


def _torch_report() -> TorchReport:
    with _lock:
        if not _answers:
            _answers.append(ask_torch())
        return _answers[0]


def judge_gpus(torch: TorchReport, driver: list[Gpu]) -> MachineGpus:
    """Return the GPUs that torch can train on, given that the driver shows at least one.

    GPUs after an unusable one are left out, because a trainer takes the first ones.
    """
    gpus = tuple(itertools.takewhile(lambda gpu: not _gpu_fault(torch, gpu), torch.gpus))
    if gpus:
        return MachineGpus(gpus, free_bytes=_free_bytes(gpus, driver))
    return MachineGpus(fault=f"{_describe(torch, driver)} cannot be used: {_fault(torch, driver)}")


def _free_bytes(gpus: tuple[TorchGpu, ...], driver: list[Gpu]) -> int | None:
    """Return the smallest free memory; for a partitioned GPU (MIG), the driver's figure is not that of the part."""
    if any(gpu.is_part for gpu in gpus):
        return None
    names = {gpu.uuid for gpu in gpus}
    return min((gpu.free for gpu in driver if gpu.uuid in names and gpu.free is not None), default=None)


def _describe(torch: TorchReport, driver: list[Gpu]) -> str:
    """Return name and driver of the first GPU, as far as they are known."""
    names = [*(gpu.name for gpu in torch.gpus), *(gpu.name for gpu in driver), "the GPU"]
    return f"{names[0]} (driver {driver[0].driver})" if driver else names[0]


def _fault(torch: TorchReport, driver: list[Gpu]) -> str:
    if not torch.version:
        return f"torch did not answer ({torch.warning}). Install Mens's environment on this machine (`make install`)."
    if torch.cuda is None:
        return (
            f"torch {torch.version} is built without CUDA. Install the build for GPUs (`make install` with a driver)."
        )
    if torch.gpus:
        return _gpu_fault(torch, torch.gpus[0])
    if (least := LEAST_DRIVER.get(torch.cuda.partition(".")[0])) and driver and _major(driver[0].driver) < int(least):
        return f"torch {torch.version} needs driver {least} or newer. Update the driver."
    return f"torch {torch.version} finds no GPU ({torch.warning or 'without a reason'}). Check the driver."


def _gpu_fault(torch: TorchReport, gpu: TorchGpu) -> str:
    """Return why adapters cannot be trained on a GPU that torch finds; empty if they can."""
    capability = "{}.{}".format(*gpu.capability)
    if not _has_kernels(torch.kernels, gpu.capability):
        return f"torch {torch.version} has no kernels for its compute capability {capability}. Use a newer GPU."
    if gpu.capability < BFLOAT16_CAPABILITY:
        return (
            f"its compute capability {capability} has no bfloat16, in which adapters are trained. Use a GPU of 8.0 "
            "or newer."
        )
    return ""


def _has_kernels(kernels: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Return whether a build has machine code of this major version, or code that the driver compiles for it (PTX)."""
    for kind, digits in re.findall(r"(sm|compute)_(\d+)", " ".join(kernels)):
        built = int(digits[:-1]), int(digits[-1])
        if built <= capability and (kind == "compute" or built[0] == capability[0]):
            return True
    return False


def _major(version: str) -> int:
    digits = version.partition(".")[0]
    return int(digits) if digits.isdecimal() else 0

"""Guarantees of a run: either the same bytes as any equal run, interrupted or not, or the same state on kernels that
may round differently.

Everything that a step depends on is either in a checkpoint (weights, optimizer, random generators) or a function of the
step number (rows, their layout, learning rate). On a CPU in fp32, the same libraries, threads and processes give the
same bits; the tests resume a run from every one of its steps. On an accelerator, sums may be computed in a different
order in every run, and on any device a step that ran out of memory and was repeated in smaller pieces sums in a
different order.

Intel's MKL, which torch uses for matrix products on a CPU, by default adds up in an order that depends on where an
operand lies in memory: thin products, as LoRA's are, then differ in their last bits between a newly computed weight and
the same weight read from a file. It may also use fewer threads on a busy machine. Both are switched off here, and
whether MKL complies is measured.

On a CPU, choices that depend on the free memory at the start do not change a bit: frozen weights that are kept
dequantised are the same numbers. The tokens of a micro-batch are the contract's, or fewer if the machine's total memory
is too small for them (`worker/training/model/memory_budget.py`): they are compared like the rest of the environment.
"""

from __future__ import annotations

import os
import platform
from enum import StrEnum
from importlib.metadata import version

import torch

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")
FIXED_ORDER = {"MKL_CBWR": "AUTO", "MKL_DYNAMIC": "FALSE"}
"""MKL's variables that fix the order of sums and the number of threads, so that neither depends on the operands'
addresses or on the machine's load.
"""
NO = ("false", "0", "no", "off")
OFFSETS = (4, 8, 16, 24, 32, 40, 48)
"""Bytes past a multiple of 64, torch's own alignment; data read from a safetensors file lies at any multiple of 8."""


ACCELERATOR, OUT_OF_MEMORY, NOT_RECORDED = "accelerator", "out_of_memory", "not_recorded"
EXPLANATIONS = {
    ACCELERATOR: "on an accelerator, the order of sums varies from run to run",
    OUT_OF_MEMORY: "a step ran out of memory and was repeated in smaller pieces",
    NOT_RECORDED: "the release that started the run did not record the reason",
    "by_load": "a library may use fewer threads on a busy machine",
    "by_place": "the order of sums depends on the operands' place in memory",
}


class Guarantee(StrEnum):
    """Guarantee on how a run compares with an equal one, and with one that was never interrupted."""

    BIT_EXACT = "bit_exact"
    STATE_EXACT = "state_exact"


def fix_order_of_sums() -> None:
    """Set MKL's variables for a fixed order of sums, unless the operator has set them; MKL reads them at its first
    computation.
    """
    for name, value in FIXED_ORDER.items():
        os.environ.setdefault(name, value)


def order_of_sums() -> str:
    """Return what the order of sums on a CPU depends on: ``fixed`` (nothing), ``by_load`` or ``by_place``."""
    if torch.get_num_threads() > 1 and threads_follow_load():
        return "by_load"
    return "by_place" if products_depend_on_place() else "fixed"


def threads_follow_load() -> bool:
    """Return whether a library may use fewer threads while the machine is busy, which changes how sums are split."""
    mkl, openmp = (os.environ.get(name, "").lower() for name in ("MKL_DYNAMIC", "OMP_DYNAMIC"))
    follows_mkl = (
        torch.backends.mkl.is_available() and mkl not in NO
    )  # MKL's own default is yes, OpenMP's default is "no"
    return follows_mkl or openmp not in ("", *NO)


def products_depend_on_place() -> bool:
    """Return whether a thin product changes its bits when an operand lies elsewhere in memory."""
    left, other = (torch.linspace(-1, 1, rows * 128).sin().view(rows, 128) for rows in (29, 4))
    expected = left @ other.t()
    return any(
        not torch.equal(_placed(left, offset) @ other.t(), expected)
        or not torch.equal(left @ _placed(other, offset).t(), expected)
        for offset in OFFSETS
    )


def _placed(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a copy that begins `offset` bytes past a multiple of 64."""
    room = torch.empty(tensor.numel() + 32, dtype=tensor.dtype)
    start = (offset - room.data_ptr()) % 64 // tensor.element_size()
    return room[start : start + tensor.numel()].view(tensor.shape).copy_(tensor)


def environment(device: torch.device, processes: int = 1) -> dict[str, str | int]:
    """Return the environment that a step's bits depend on in addition to the plan."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "kernels": "cuda" if on_gpu else torch.backends.cpu.get_cpu_capability(),
        "threads": 0 if on_gpu else torch.get_num_threads(),
        "products": "fixed" if on_gpu else order_of_sums(),
        "processes": processes,
        **{name: version(name) for name in PACKAGES},
    }


def inexact_reasons(saved: dict[str, str | int], here: dict[str, str | int]) -> list[str]:
    """Return why a run that resumes here from a checkpoint is not bit-exact; for a new run, `saved` is its own
    environment.

    Returns:
        names of the differences, keys of :data:`EXPLANATIONS`, or both; empty if the run is bit-exact.
    """
    reasons = [name for name in saved.keys() | here.keys() if saved.get(name) != here.get(name)]
    if here["kernels"] == "cuda":
        reasons.append(ACCELERATOR)
    if here["products"] != "fixed":
        reasons.append(str(here["products"]))
    return sorted(reasons)


def explain(reason: str) -> str:
    """Return a reason of :func:`inexact_reasons` as a clause."""
    return EXPLANATIONS.get(reason, f"the run was resumed in a different environment: {reason}")

"""What a run may claim: the bytes of any equal run, interrupted or not, or the same state on kernels that may round differently.

Everything a step depends on is in a checkpoint (weights, optimizer, random generators) or a function of the step (rows,
their layout, learning rate). On a CPU in fp32, with the same libraries, threads and processes, the same bits come out;
the tests resume a run from every one of its steps. On an accelerator sums may be taken in another order, run or resumed,
and a step that ran out of memory and was done in smaller pieces adds up in another order anywhere.

Intel's MKL, which torch multiplies matrices with on a CPU, adds up in an order that depends on where an operand lies in
memory, unless it is told not to: thin products, as LoRA's are, then differ in their last bits between a weight that was
made and the same weight read from a file. So it is told, and whether it obeys is measured.
"""

from __future__ import annotations

import os
import platform
from enum import StrEnum
from importlib.metadata import version

import torch

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")
FIXED_ORDER = {"MKL_CBWR": "AUTO", "MKL_DYNAMIC": "FALSE"}
"""MKL's variables: the same order of sums wherever operands lie, and as many threads however busy the machine is."""
OFFSETS = (4, 8, 16, 24, 32, 40, 48)
"""Bytes past a multiple of 64, torch's own alignment; what is read from a safetensors file lies at any multiple of 8."""


class Guarantee(StrEnum):
    """How a run compares with an equal one, and with one that was never interrupted."""

    BIT_EXACT = "bit_exact"
    STATE_EXACT = "state_exact"


def fix_order_of_sums() -> None:
    """Tell MKL, which reads its variables when it first computes; what the operator has set stays."""
    for name, value in FIXED_ORDER.items():
        os.environ.setdefault(name, value)


def products_depend_on_place() -> bool:
    """Whether a thin product has other bits when an operand lies elsewhere in memory."""
    one, other = (torch.linspace(-1, 1, rows * 128).sin().view(rows, 128) for rows in (29, 4))
    expected = one @ other.t()
    return any(
        not torch.equal(_placed(one, offset) @ other.t(), expected)
        or not torch.equal(one @ _placed(other, offset).t(), expected)
        for offset in OFFSETS
    )


def _placed(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy that begins so many bytes past a multiple of 64."""
    room = torch.empty(tensor.numel() + 32, dtype=tensor.dtype)
    start = (offset - room.data_ptr()) % 64 // tensor.element_size()
    return room[start : start + tensor.numel()].view(tensor.shape).copy_(tensor)


def environment(device: torch.device, processes: int = 1) -> dict[str, str | int]:
    """What a step's bits depend on beside the plan."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "kernels": "cuda" if on_gpu else torch.backends.cpu.get_cpu_capability(),
        "threads": 0 if on_gpu else torch.get_num_threads(),
        "products": "by_place" if not on_gpu and products_depend_on_place() else "fixed",
        "processes": processes,
        **{name: version(name) for name in PACKAGES},
    }


def compare(saved: dict[str, str | int], here: dict[str, str | int]) -> tuple[Guarantee, list[str]]:
    """The guarantee of going on here from a checkpoint, and what differs; of a new run, compared with its own environment."""
    differs = sorted(name for name in saved.keys() | here.keys() if saved.get(name) != here.get(name))
    bit_exact = not differs and here["kernels"] != "cuda" and here["products"] == "fixed"
    return (Guarantee.BIT_EXACT if bit_exact else Guarantee.STATE_EXACT), differs


def weaker(one: Guarantee, other: Guarantee) -> Guarantee:
    """The guarantee of a run that was resumed under both."""
    return one if one is Guarantee.STATE_EXACT else other

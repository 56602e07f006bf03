"""What a resumed run may claim: the very run that was never interrupted, or the same state on kernels that may round differently.

Everything a step depends on is in a checkpoint (weights, optimizer, random generators) or a function of the step (rows,
their layout, learning rate). On a CPU in fp32, with the same libraries, threads and processes, the same bits come out;
the tests resume a run from every one of its steps. On an accelerator sums may be taken in another order, run or resumed.
"""

from __future__ import annotations

import platform
from enum import StrEnum
from importlib.metadata import version

import torch

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")


class Guarantee(StrEnum):
    """How a run compares with one that was never interrupted."""

    BIT_EXACT = "bit_exact"
    STATE_EXACT = "state_exact"


def environment(device: torch.device, processes: int = 1) -> dict[str, str | int]:
    """What a step's bits depend on beside the plan."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "kernels": "cuda" if on_gpu else torch.backends.cpu.get_cpu_capability(),
        "threads": 0 if on_gpu else torch.get_num_threads(),
        "processes": processes,
        **{name: version(name) for name in PACKAGES},
    }


def compare(saved: dict[str, str | int], here: dict[str, str | int]) -> tuple[Guarantee, list[str]]:
    """The guarantee of going on here from a checkpoint, and what differs."""
    differs = sorted(name for name in saved.keys() | here.keys() if saved.get(name) != here.get(name))
    bit_exact = not differs and here["kernels"] != "cuda"
    return (Guarantee.BIT_EXACT if bit_exact else Guarantee.STATE_EXACT), differs


def weaker(one: Guarantee, other: Guarantee) -> Guarantee:
    """The guarantee of a run that was resumed under both."""
    return one if one is Guarantee.STATE_EXACT else other

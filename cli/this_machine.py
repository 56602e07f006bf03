"""This machine as a place to train: its GPU, or its main memory if it has none; torch and CUDA are not loaded in this
process.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

from shared.gpus.driver import chosen_gpus, query_gpus
from shared.gpus.usable import find_gpus
from shared.host import allowed_cores, allowed_memory
from shared.preflight.types import Machine, ServingLimits
from shared.settings import TrainerShareSettings, read_settings

ORIGIN = "this machine"


def this_machine(
    device: str = "auto", *, vram_bytes: int | None = None, origin: str = ORIGIN, limits: ServingLimits | None = None
) -> Machine:
    """Describe the machine that a job is planned for.

    Args:
        device: ``cpu``, ``cuda``, or ``auto``: a GPU if this machine has one.
        vram_bytes: memory of a GPU that may be elsewhere; None: the memory of this machine's smallest GPU.
        origin: source of ``device``.
        limits: limits of the serving tier.
    """
    if device == "cpu":
        return _cpu(origin, limits)
    if vram_bytes:
        return Machine("cuda", vram_bytes=vram_bytes, origin=origin, limits=limits)
    share = read_settings(TrainerShareSettings).trainer_gpu_share
    machine = _detected(origin, limits) if device == "auto" else _driven(origin, limits)
    return replace(machine, vram_bytes=int(share * machine.vram_bytes)) if machine.vram_bytes else machine


def share_note(machine: Machine) -> str | None:
    """Return a note if the plan uses a machine's whole GPU because no setting limits the trainer's share.

    Args:
        machine: :func:`this_machine`, with the memory of its own GPU.
    """
    if not machine.vram_bytes or "trainer_gpu_share" in read_settings(TrainerShareSettings).model_fields_set:
        return None
    return (
        "Planned for the whole GPU. If a replica is to have a part of it, as under `mens up` with one GPU, set the trainer's share, "
        "e.g. MENS_TRAINER_GPU_SHARE=0.4."
    )


def _driven(origin: str, limits: ServingLimits | None) -> Machine:
    memory, name = _drivers_gpu()
    return Machine("cuda", vram_bytes=memory, device_name=name, origin=origin, limits=limits)


def _detected(origin: str, limits: ServingLimits | None) -> Machine:
    # A command line alone, without the trainer's packages, plans for an installation on such a machine.
    if find_spec("torch") is None:
        memory, name = _drivers_gpu()
        fault = None
    else:
        gpus = find_gpus()
        memory, name = (
            min((gpu.memory_bytes for gpu in gpus.gpus), default=None),
            gpus.gpus[0].name if gpus.gpus else "",
        )
        fault = gpus.fault
    if memory is None:
        return _cpu(origin, limits, fault)
    return Machine("cuda", vram_bytes=memory, device_name=name, origin=origin, limits=limits)


def _cpu(origin: str, limits: ServingLimits | None, gpu_fault: str | None = None) -> Machine:
    host, cores = allowed_memory(), allowed_cores()
    return Machine("cpu", host_bytes=host, cores=cores, gpu_fault=gpu_fault, origin=origin, limits=limits)


def _drivers_gpu() -> tuple[int | None, str]:
    """Return the memory of the smallest GPU, and the name of the first, as the driver shows them."""
    gpus = chosen_gpus(query_gpus(), os.environ)
    memory = min((gpu.total for gpu in gpus if gpu.total is not None), default=None)
    return memory, gpus[0].name if gpus else ""

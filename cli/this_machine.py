"""This machine as a place to train: its GPU, or its main memory if it has none; without torch and without CUDA."""

from __future__ import annotations

import shutil
import subprocess

from shared.host import allowed_cores, allowed_memory
from shared.preflight.types import Machine, ServingLimits

ORIGIN = "this machine"
QUERY_SECONDS = 30


def this_machine(
    device: str = "auto", *, vram_bytes: int | None = None, origin: str = ORIGIN, limits: ServingLimits | None = None
) -> Machine:
    """Describe the machine that a job is planned for.

    Args:
        device: ``cpu``, ``cuda``, or ``auto``: a GPU if this machine has one.
        vram_bytes: memory of a GPU that may be elsewhere; None: that of the smallest GPU of this machine.
        origin: source of ``device``.
        limits: limits of the serving tier.
    """
    gpus = [] if device == "cpu" or vram_bytes else query_gpus()
    memory = vram_bytes or min((memory for memory, _ in gpus), default=None)
    if device == "cuda" or (device == "auto" and memory):
        name = gpus[0][1] if gpus else ""
        return Machine("cuda", vram_bytes=memory, device_name=name, origin=origin, limits=limits)
    return Machine("cpu", host_bytes=allowed_memory(), cores=allowed_cores(), origin=origin, limits=limits)


def query_gpus() -> list[tuple[int, str]]:
    """Return memory in bytes and name of each GPU that NVIDIA's own tool lists; empty without the tool."""
    if not (tool := shutil.which("nvidia-smi")):
        return []
    command = [tool, "--query-gpu=memory.total,name", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line.partition(",") for line in done.stdout.splitlines()]
    return [(int(size) << 20, name.strip()) for size, _, name in lines if size.strip().isdecimal()]

"""GPUs as NVIDIA's driver shows them, read without CUDA from device files and from the output of ``nvidia-smi``."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

COLUMNS = ("index", "uuid", "memory.total", "memory.free", "driver_version", "name")
"""Columns of the driver's table. The name is last because it may contain a comma."""
PROGRAM_COLUMNS = ("gpu_uuid", "pid", "used_memory", "process_name")
# Without persistence mode the driver initialises each GPU for the query, which takes seconds.
QUERY_SECONDS = 20.0
DEVICES = Path("/dev")
WSL_LIBRARIES = Path("/usr/lib/wsl/lib")
"""Folder of the driver's program and libraries in the Linux of Windows (WSL2), which has no device file of a GPU."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver describes it; sizes in bytes, None if the driver shows none, e.g. for a partitioned GPU
    (MIG).
    """

    number: str
    uuid: str
    total: int | None
    free: int | None
    driver: str
    name: str


def visible_gpus(devices: Path | None = None) -> int:
    """Return the number of GPUs that the driver shows to this process, whether or not torch can use them.

    Args:
        devices: folder of the device files; None: the machine's.
    """
    here = _device_files(devices or DEVICES) or len(query_gpus())
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return here if named is None else min(here, len(visible_names(named)))


def _device_files(devices: Path) -> int:
    return len([path for path in devices.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit()])


def visible_names(named: str) -> list[str]:
    """Return the devices that a value of ``CUDA_VISIBLE_DEVICES`` exposes: CUDA stops at the first invalid one."""
    return list(itertools.takewhile(lambda name: name not in ("", "-1"), (name.strip() for name in named.split(","))))


def query_gpus() -> list[Gpu]:
    """Return every GPU that the driver reports; an empty list without the driver's program, or if it fails."""
    return parse_gpus(_query(f"--query-gpu={','.join(COLUMNS)}"))


def _query(fields: str) -> str:
    """Return the driver's table, one line per row; empty without the driver's program, or if it fails."""
    if not (program := find_program()):
        return ""
    command = [program, fields, "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the GPUs' memory is not known: %s", error)
        return ""


def find_program() -> str | None:
    """Return the path of ``nvidia-smi``; None if this machine does not have it."""
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=str(WSL_LIBRARIES))


def parse_gpus(answer: str) -> list[Gpu]:
    """Parse the driver's table, one GPU per line; other lines are left out."""
    return [
        Gpu(number, uuid, _bytes(total), _bytes(free), driver, name)
        for number, uuid, total, free, driver, name in _rows(answer, len(COLUMNS))
    ]


def _rows(answer: str, columns: int) -> list[list[str]]:
    """Return the cells of each line that has this many; the last one may contain commas."""
    rows = [[part.strip() for part in line.split(",", columns - 1)] for line in answer.splitlines()]
    return [row for row in rows if len(row) == columns]


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """A program that holds memory of a GPU; the memory's size in bytes, None if the driver does not show it."""

    uuid: str
    pid: str
    used: int | None
    name: str

    def __str__(self) -> str:
        size = "" if self.used is None else f", {self.used >> 20} MiB"
        return f"{self.name} (process {self.pid}{size})"


def query_programs(uuid: str) -> list[GpuProgram]:
    """Return the programs that hold memory of a GPU, apart from this process; an empty list if the driver does not
    show them, as in a container.
    """
    rows = _rows(_query(f"--query-compute-apps={','.join(PROGRAM_COLUMNS)}"), len(PROGRAM_COLUMNS))
    programs = [GpuProgram(owner, pid, _bytes(used), name) for owner, pid, used, name in rows]
    return [program for program in programs if program.uuid == uuid and program.pid != str(os.getpid())]


def _bytes(mebibytes: str) -> int | None:
    return int(mebibytes) << 20 if mebibytes.isdecimal() else None


def chosen_gpus(gpus: list[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that the environment exposes to CUDA, named by index or by a prefix of their uuid."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return gpus
    names = visible_names(named)
    return [gpu for gpu in gpus if any(name == gpu.number or gpu.uuid.startswith(name) for name in names)]

"""A simulated machine with a GPU: the driver's program, its device files, and a torch that reports what a real one
would.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shared.gpus import driver, usable

TORCH = """
import json, pathlib, types, warnings
facts = json.loads(pathlib.Path(__file__).with_name("facts.json").read_text())
__version__ = facts["version"]
version = types.SimpleNamespace(cuda=facts["cuda"])

class cuda:
    def is_available():
        with open({asked!r}, "a") as file:
            file.write("asked\\n")
        if facts["warning"]:
            warnings.warn(facts["warning"])
        return bool(facts["gpus"])
    device_count = lambda: len(facts["gpus"])
    get_device_properties = lambda index: types.SimpleNamespace(**facts["gpus"][index])
    get_arch_list = lambda: facts["kernels"]
"""
OLD_DRIVER_WARNING = "CUDA initialization: The NVIDIA driver on your system is too old (found version 12020)."
KERNELS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
"""Version of torch's build for CUDA 13."""
RTX_4090 = "NVIDIA GeForce RTX 4090"


@dataclass(frozen=True)
class Card:
    """A GPU, as the driver and torch describe it."""

    name: str = RTX_4090
    capability: tuple[int, int] = (8, 9)
    mebibytes: int | None = 24564
    uuid: str = "aaaa"
    torchs_name: str | None = None
    torchs_mebibytes: int | None = None


@dataclass(frozen=True)
class PretendedMachine:
    """A simulated machine: its GPUs, driver and torch.

    Attributes:
        cards: GPUs of the machine.
        files: whether the GPUs have device files, as everywhere but under WSL2.
        torch: version of torch; with ``+cpu`` it finds nothing.
    """

    cards: tuple[Card, ...] = (Card(),)
    driver: str = "580.65.06"
    torch: str = "2.13.0+cu130"
    files: bool = True
    kernels: tuple[str, ...] = field(default=KERNELS)

    @property
    def finds(self) -> bool:
        return self.torch.endswith("cu130") and int(self.driver.partition(".")[0]) >= 580


MACHINES = {
    "new driver": PretendedMachine(),
    "old driver": PretendedMachine(driver="550.54.14"),
    "CPU build": PretendedMachine(torch="2.13.0+cpu"),
    "two cards": PretendedMachine((Card(), Card(mebibytes=23028, uuid="bbbb"))),
    "MIG": PretendedMachine(
        (Card("NVIDIA A100-SXM4-40GB", (8, 0), None, torchs_name="NVIDIA A100-SXM4-40GB MIG 3g.20gb", torchs_mebibytes=19968),)
    ),
    "WSL2": PretendedMachine(files=False),
    "T4": PretendedMachine((Card("Tesla T4", (7, 5), 15360),)),
    "V100": PretendedMachine((Card("Tesla V100-SXM2-16GB", (7, 0), 16384),)),
}  # fmt: skip


def pretend(machine: PretendedMachine | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process and its children see the simulated machine; None: a machine without a GPU."""
    folder.mkdir(exist_ok=True)
    devices, programs, packages = (folder / name for name in ("dev", "bin", "packages"))
    for made in (devices, programs, packages / "torch"):
        made.mkdir(parents=True)
    monkeypatch.setattr(driver, "DEVICES", devices)
    monkeypatch.setattr(driver, "WSL_LIBRARIES", folder / "wsl")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(usable, "_answers", [])
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
    _write_torch(machine, packages / "torch", folder / "asked")
    if machine is not None:
        _write_driver(machine, devices, programs / "nvidia-smi")


def _write_torch(machine: PretendedMachine | None, package: Path, asked: Path) -> None:
    machine = machine or PretendedMachine((), torch="2.13.0+cpu")
    found = [
        {
            "name": card.torchs_name or card.name,
            "major": card.capability[0],
            "minor": card.capability[1],
            "total_memory": (card.torchs_mebibytes or card.mebibytes or 0) << 20,
            "uuid": card.uuid,
        }
        for card in machine.cards
    ]
    facts = {
        "version": machine.torch,
        "cuda": "13.0" if machine.torch.endswith("cu130") else None,
        "warning": "" if machine.finds or machine.torch.endswith("cpu") else OLD_DRIVER_WARNING,
        "gpus": found if machine.finds else [],
        "kernels": list(machine.kernels),
    }
    (package / "facts.json").write_text(json.dumps(facts))
    (package / "__init__.py").write_text(TORCH.replace("{asked!r}", repr(str(asked))))


def _write_driver(machine: PretendedMachine, devices: Path, program: Path) -> None:
    values: dict[str, Callable[[Card], object]] = {
        "uuid": lambda card: f"GPU-{card.uuid}",
        "memory.total": lambda card: card.mebibytes or "[N/A]",
        "memory.free": lambda card: card.mebibytes - 464 if card.mebibytes else "[N/A]",
        "compute_cap": lambda card: "{}.{}".format(*card.capability),
        "driver_version": lambda _: machine.driver,
        "name": lambda card: card.name,
        "utilization.gpu": lambda _: 3,
    }
    table = [
        {"index": str(index)} | {name: str(value(card)) for name, value in values.items()}
        for index, card in enumerate(machine.cards)
    ]
    code = "import json, sys\ncolumns = sys.argv[1].partition('=')[2].split(',')\n"
    code += f"for row in json.loads({json.dumps(json.dumps(table))}):\n    print(', '.join(row[name] for name in columns))\n"
    program.write_text(f"#!{sys.executable}\n{code}")
    program.chmod(0o755)
    for index in range(len(machine.cards) if machine.files else 0):
        (devices / f"nvidia{index}").touch()

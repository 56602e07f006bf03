"""Which GPUs can be used for training, and why the others cannot, on simulated machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.gpus.torch_report import TorchReport, ask_torch
from shared.gpus.usable import MachineGpus, find_gpus, judge_gpus
from tests.support.pretended_gpu import MACHINES, RTX_4090, Card, PretendedMachine, pretend

MIB = 1 << 20


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def found(machine: PretendedMachine | None) -> MachineGpus:
        pretend(machine, tmp_path / "gpu", monkeypatch)
        return find_gpus()

    return found


@pytest.mark.parametrize(
    ("machine", "name", "total", "free"),
    [
        ("new driver", RTX_4090, [24564], 24100),
        ("two cards", RTX_4090, [24564, 23028], 22564),
        ("WSL2", RTX_4090, [24564], 24100),
        # The driver's figures are of the whole GPU.
        ("MIG", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", [19968], None),
    ],
)
def test_usable_gpus_are_torchs(pretended, machine: str, name: str, total: list[int], free: int | None) -> None:
    found = pretended(MACHINES[machine])
    assert [gpu.memory_bytes for gpu in found.gpus] == [size * MIB for size in total]
    assert (found.gpus[0].name, found.fault) == (name, None)
    assert found.free_bytes == (None if free is None else free * MIB)


FAULTS = {
    "old driver": f"{RTX_4090} (driver 550.54.14) cannot be used: torch 2.13.0+cu130 needs driver 580 or newer. Update the driver.",
    "CPU build": f"{RTX_4090} (driver 580.65.06) cannot be used: torch 2.13.0+cpu is built without CUDA. Install the build for GPUs"
    " (`make install` with a driver).",
    "T4": "Tesla T4 (driver 580.65.06) cannot be used: its compute capability 7.5 has no bfloat16, in which adapters are trained."
    " Use a GPU of 8.0 or newer.",
    "V100": "Tesla V100-SXM2-16GB (driver 580.65.06) cannot be used: torch 2.13.0+cu130 has no kernels for its compute capability 7.0."
    " Use a newer GPU.",
}


@pytest.mark.parametrize(("machine", "fault"), FAULTS.items())
def test_unusable_gpu_has_its_reason(pretended, machine: str, fault: str) -> None:
    found = pretended(MACHINES[machine])
    assert (found.gpus, found.fault) == ((), fault)


def test_machine_without_a_gpu_does_not_start_torch(pretended, tmp_path: Path) -> None:
    assert pretended(None) == MachineGpus()
    assert not (tmp_path / "gpu" / "asked").exists()


def test_torch_is_queried_once(pretended, tmp_path: Path) -> None:
    assert pretended(MACHINES["new driver"]) == find_gpus()
    assert (tmp_path / "gpu" / "asked").read_text() == "asked\n"


def test_hidden_gpu_is_none(pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    pretended(MACHINES["old driver"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus() == MachineGpus()


def test_gpu_behind_an_unusable_one_is_left_out(pretended) -> None:
    t4 = Card("Tesla T4", (7, 5), 15360, "cccc")
    assert [gpu.name for gpu in pretended(PretendedMachine((Card(), t4, Card(uuid="dddd")))).gpus] == [RTX_4090]


@pytest.mark.parametrize(
    ("kernels", "capability", "usable"),
    [
        (("sm_80",), (8, 9), True),  # machine code runs on later minor versions
        (("sm_90a",), (8, 9), False),
        (("sm_90",), (10, 0), False),
        (("sm_90", "compute_90"), (12, 0), True),  # PTX is compiled by the driver
        (("sm_120",), (12, 1), True),
    ],
)
def test_kernels_of_the_build_decide(pretended, kernels: tuple[str, ...], capability, usable: bool) -> None:
    assert bool(pretended(PretendedMachine((Card(capability=capability),), kernels=kernels)).gpus) == usable


def test_torch_that_does_not_answer_is_a_fault(pretended, tmp_path: Path) -> None:
    pretended(None)
    (tmp_path / "gpu" / "packages" / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13')")
    report = ask_torch()
    assert report == TorchReport(warning="ImportError: libcudart.so.13")
    fault = judge_gpus(report, []).fault
    assert fault
    assert fault.startswith("the GPU cannot be used: torch did not answer (ImportError: libcudart.so.13).")


@pytest.mark.torch
def test_installed_torch_answers() -> None:
    report = ask_torch()
    assert report.version.startswith("2.")
    assert (report.cuda is None) == report.version.endswith("+cpu")

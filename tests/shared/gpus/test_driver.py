"""GPUs of a machine, as its driver shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.gpus import driver
from shared.gpus.driver import chosen_gpus, parse_gpus, query_gpus, query_programs, visible_gpus
from tests.support.pretended_gpu import MACHINES, pretend

TABLE = """\
0, GPU-aaaa-1, 143771, 143000, 580.65.06, NVIDIA H200
1, GPU-bbbb-2, 24576, 1024, 580.65.06, NVIDIA GeForce RTX 3090, founders
2, GPU-cccc-3, [N/A], [N/A], 580.65.06, NVIDIA A100 in parts
NVIDIA-SMI has failed
"""
MIB = 1 << 20


def test_the_drivers_table_is_read() -> None:
    first, second, part = parse_gpus(TABLE)
    assert (first.total, first.free, first.name) == (143771 * MIB, 143000 * MIB, "NVIDIA H200")
    assert (second.name, second.driver) == ("NVIDIA GeForce RTX 3090, founders", "580.65.06")
    assert (part.total, part.free) == (None, None)
    assert parse_gpus("") == []


@pytest.mark.parametrize(
    ("named", "numbers"), [(None, "012"), ("1", "1"), ("GPU-aa,1", "01"), ("", ""), ("-1", ""), ("0,-1,1", "0")]
)
def test_only_gpus_that_cuda_shows_count(named: str | None, numbers: str) -> None:
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert "".join(gpu.number for gpu in chosen_gpus(parse_gpus(TABLE), environment)) == numbers


@pytest.mark.parametrize(
    ("named", "gpus"),
    [(None, 4), ("", 0), ("-1", 0), ("0", 1), ("0,2", 2), ("GPU-8932f937, 1", 2), ("0,-1,2", 1), ("0,1,2,3,4", 4)],
)
def test_gpus_are_counted_by_device_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, gpus: int
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia0x", "sda"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus(tmp_path) == gpus


def test_under_wsl2_the_program_counts_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(MACHINES["WSL2"], tmp_path / "gpu", monkeypatch)
    assert visible_gpus() == 1
    # Windows' own folder of it may not be on the path, e.g. of a service.
    monkeypatch.setattr(driver, "WSL_LIBRARIES", tmp_path / "gpu" / "bin")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert visible_gpus() == 1


def test_failing_program_lists_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(MACHINES["WSL2"], tmp_path / "gpu", monkeypatch)
    (tmp_path / "gpu" / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert (query_gpus(), visible_gpus()) == ([], 0)


def test_programs_that_hold_memory_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only programs on that GPU are named, and not this process, which has a context of its own."""
    pretend(MACHINES["WSL2"], tmp_path / "gpu", monkeypatch)
    rows = (
        "GPU-a, 41, 18000, VLLM::EngineCore",
        "GPU-b, 42, 700, other",
        f"GPU-a, {os.getpid()}, 500, python",
        "GPU-a, 43, [N/A], a, b",
    )
    (tmp_path / "gpu" / "bin" / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    assert list(map(str, query_programs("GPU-a"))) == ["VLLM::EngineCore (process 41, 18000 MiB)", "a, b (process 43)"]

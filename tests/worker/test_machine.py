"""A worker detects its machine and reports it."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from shared.errors import Code, Unavailable
from shared.sandbox.probe import report_of_machine
from shared.worker_registry import WorkerMachine
from tests.support.pretended_gpu import MACHINES, RTX_4090, pretend
from tests.support.waiting import eventually
from worker.machine import MachineReporter, describe_machine

MIB = 1 << 20


def test_the_smallest_gpu_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(MACHINES["two cards"], tmp_path / "gpu", monkeypatch)
    found = describe_machine(0)
    assert (found.device, found.device_name, found.devices) == ("cuda", RTX_4090, 2)
    assert describe_machine(1).devices == 1
    assert (found.memory_bytes, found.free_bytes, found.gpu_fault) == (23028 * MIB, 22564 * MIB, None)
    assert describe_machine(0, 0.5).memory_bytes == 23028 * MIB // 2


@pytest.mark.parametrize("machine", ["new driver", "WSL2", "MIG"])
def test_usable_gpu_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    pretend(MACHINES[machine], tmp_path / "gpu", monkeypatch)
    found = describe_machine(0)
    assert (found.device, found.devices, found.gpu_fault) == ("cuda", 1, None)


@pytest.mark.parametrize("machine", ["old driver", "CPU build", "T4", "V100"])
def test_unusable_gpu_does_not_count_and_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    pretend(MACHINES[machine], tmp_path / "gpu", monkeypatch)
    found = describe_machine(0)
    assert (found.device, found.device_name, found.devices) == ("cpu", "", 0)
    assert found.gpu_fault
    assert found.gpu_fault.startswith(
        f"{MACHINES[machine].cards[0].name} (driver {MACHINES[machine].driver}) cannot be used"
    )


def test_without_a_gpu_the_main_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(None, tmp_path / "gpu", monkeypatch)
    found = describe_machine(1)
    assert (found.device, found.memory_bytes, found.gpu_fault) == ("cpu", None, None)
    assert found.host_bytes
    assert found.host_bytes > MIB


class Registry:
    """Remembers what was reported."""

    def __init__(self) -> None:
        self.reports: list[WorkerMachine] = []
        self.forgotten: list[str] = []

    def report(self, worker: str, found: WorkerMachine) -> bool:
        self.reports.append(found)
        return True

    def forget(self, worker: str) -> None:
        self.forgotten.append(worker)


def test_the_machine_is_reported_until_the_worker_stops() -> None:
    registry = Registry()
    reporter = MachineReporter(registry, "one:1", 1, "off", every_seconds=0.01)
    reporter.start()
    eventually(lambda: len(registry.reports) > 2, what="it is reported again and again")
    reporter.stop()
    assert registry.forgotten == ["one:1"]
    assert [found.sandbox for found in registry.reports[:2]] == [None, "none: off: MENS_SANDBOX is off"]


def test_release_and_disk_are_reported(tmp_path: Path) -> None:
    """Without the folder, before the first job, the rest is reported nevertheless."""
    registry = Registry()
    for folder in (tmp_path, tmp_path / "none"):
        reporter = MachineReporter(registry, "one:1", 1, "off", every_seconds=3600, runs_dir=folder)
        reporter.start()
        reporter.stop()
    first, last = registry.reports[0], registry.reports[-1]
    assert first.disk_bytes == shutil.disk_usage(tmp_path).total
    assert 0 < (first.disk_free_bytes or 0) <= first.disk_bytes
    assert last.disk_bytes is None
    assert first.release == last.release == version("mens")


def test_fault_that_comes_or_goes_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the worker's name, and long before the next report: who repairs a disk looks for the fault's end."""
    monkeypatch.setattr("worker.machine.FAULT_SECONDS", 0.01)
    full = Unavailable(Code.STORAGE_FULL, "the disk is full.", remedy="")
    registry, faults = Registry(), [None]
    reporter = MachineReporter(registry, "one:1", 1, "off", every_seconds=3600, fault=lambda: faults[-1])
    reporter.start()
    for fault, number in ((full, 3), (None, 4)):
        eventually(lambda number=number: len(registry.reports) == number - 1, what="the fault before is reported")
        faults.append(fault)
    eventually(lambda: len(registry.reports) == 4, what="its end is reported")
    reporter.stop()
    assert [found.fault for found in registry.reports] == [None, None, f"one:1 takes no job: {full}", None]
    assert [found.fault_code for found in registry.reports] == [None, None, "STORAGE_FULL", None]


def test_fault_whose_report_did_not_arrive_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.machine.FAULT_SECONDS", 0.01)
    full = Unavailable(Code.STORAGE_FULL, "the disk is full.", remedy="")
    registry = Registry()
    arrives = iter([False, False, False, True])
    report = registry.report
    monkeypatch.setattr(registry, "report", lambda worker, found: report(worker, found) and next(arrives, True))
    reporter = MachineReporter(registry, "one:1", 1, "off", every_seconds=3600, fault=lambda: full)
    reporter.start()
    eventually(lambda: len(registry.reports) == 4, what="it is reported until it has arrived")
    reporter.stop()
    assert {found.fault_code for found in registry.reports} == {"STORAGE_FULL"}


@pytest.mark.sandbox
def test_what_code_runs_in_is_probed_at_the_start_and_reported() -> None:
    registry = Registry()
    reporter = MachineReporter(registry, "one:1", 1, "auto", every_seconds=0.01)
    reporter.start()
    eventually(lambda: len(registry.reports) > 1, what="the probe has ended")
    reporter.stop()
    assert registry.reports[0].sandbox is None, "the first report does not wait for it"
    assert registry.reports[1].sandbox == report_of_machine("auto").statement

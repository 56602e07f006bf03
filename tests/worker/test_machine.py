"""What a worker finds out about its machine, and that it tells it."""

from __future__ import annotations

import pytest

from shared.sandbox.probe import report_of_machine
from shared.worker_registry import WorkerMachine
from tests.support.waiting import eventually
from worker import machine
from worker.machine import MachineReporter, chosen_gpus, describe_machine, parse_gpus

TABLE = """\
0, GPU-aaaa-1, 143771, 143000, NVIDIA H200
1, GPU-bbbb-2, 24576, 1024, NVIDIA GeForce RTX 3090, founders
2, GPU-cccc-3, [N/A], [N/A], NVIDIA A100 in parts
"""
MIB = 1 << 20


def test_the_drivers_table_is_read() -> None:
    first, second = parse_gpus(TABLE)
    assert (first.total, first.free, first.name) == (143771 * MIB, 143000 * MIB, "NVIDIA H200")
    assert second.name == "NVIDIA GeForce RTX 3090, founders"
    assert parse_gpus("") == []


@pytest.mark.parametrize(
    ("named", "numbers"), [(None, "01"), ("1", "1"), ("GPU-aa,1", "01"), ("", ""), ("-1", ""), ("0,-1,1", "0")]
)
def test_only_gpus_that_cuda_shows_count(named: str | None, numbers: str) -> None:
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert "".join(gpu.number for gpu in chosen_gpus(parse_gpus(TABLE), environment)) == numbers


def test_the_smallest_gpu_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "visible_gpus", lambda: 2)
    monkeypatch.setattr(machine, "query_gpus", lambda: parse_gpus(TABLE))
    found = describe_machine(0)
    assert (found.device, found.devices) == ("cuda", 2)
    assert describe_machine(1).devices == 1
    assert (found.memory_bytes, found.free_bytes) == (24576 * MIB, 1024 * MIB)


def test_without_the_drivers_program_there_is_a_gpu_of_unknown_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: 1)
    monkeypatch.setattr(machine, "QUERY", ["/nowhere/nvidia-smi"])
    found = describe_machine(1)
    assert (found.device, found.memory_bytes) == ("cuda", None)


def test_without_a_gpu_the_main_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: 0)
    found = describe_machine(1)
    assert (found.device, found.memory_bytes) == ("cpu", None)
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


def test_fault_is_reported_with_the_workers_name() -> None:
    registry, faults = Registry(), iter([None, "the disk is full."])
    reporter = MachineReporter(registry, "one:1", 1, "off", every_seconds=0.01, fault=lambda: next(faults, None))
    reporter.start()
    eventually(lambda: len(registry.reports) > 2, what="it is reported again and again")
    reporter.stop()
    assert [found.fault for found in registry.reports[:3]] == [None, "one:1 takes no job: the disk is full.", None]


@pytest.mark.sandbox
def test_what_code_runs_in_is_probed_at_the_start_and_reported() -> None:
    registry = Registry()
    reporter = MachineReporter(registry, "one:1", 1, "auto", every_seconds=0.01)
    reporter.start()
    eventually(lambda: len(registry.reports) > 1, what="the probe has ended")
    reporter.stop()
    assert registry.reports[0].sandbox is None, "the first report does not wait for it"
    assert registry.reports[1].sandbox == report_of_machine("auto").statement

"""Workers report their machines to a real Valkey; the API uses the smallest of their values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.standalone.ports import free_port
from shared import worker_registry
from shared.worker_registry import KEY, WorkerMachine, WorkerRegistry, common_machine
from tests.support.valkey import Valkey, running_valkey

GIB = 1 << 30
LARGE = WorkerMachine(device="cuda", device_name="H200", devices=8, memory_bytes=140 * GIB, free_bytes=139 * GIB)
SMALL = WorkerMachine(device="cuda", device_name="T4", devices=1, memory_bytes=15 * GIB, free_bytes=3 * GIB)
NO_GPU = WorkerMachine(device="cpu", host_bytes=8 * GIB)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Valkey]:
    with running_valkey(tmp_path) as valkey:
        yield valkey


def test_what_workers_report_is_read_by_another_process(broker: Valkey) -> None:
    workers, api = WorkerRegistry(broker.url), WorkerRegistry(broker.url)
    assert api.machines() == []
    assert workers.report("one:1", LARGE)
    assert workers.report("two:1", NO_GPU)
    assert workers.report("one:1", SMALL)  # the same worker, again
    assert sorted(machine.device_name for machine in api.machines()) == ["", "T4"]
    workers.forget("one:1")
    assert api.machines() == [NO_GPU]


def test_a_worker_that_reports_no_more_is_gone(broker: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = WorkerRegistry(broker.url)
    registry.report("one:1", LARGE)
    monkeypatch.setattr(worker_registry, "LIVE_SECONDS", -1.0)
    assert registry.machines() == []
    assert broker.client().hlen(KEY) == 0


def test_a_report_of_before_the_clock_went_back_is_none(broker: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, real = WorkerRegistry(broker.url), WorkerRegistry._now
    monkeypatch.setattr(WorkerRegistry, "_now", lambda self: real(self) + 3600)
    registry.report("one:1", LARGE)
    monkeypatch.undo()
    assert registry.machines() == []


def test_an_entry_that_is_none_is_dropped(broker: Valkey) -> None:
    broker.client().hset(KEY, "odd", "hello")
    assert WorkerRegistry(broker.url).machines() == []
    assert broker.client().hlen(KEY) == 0


def test_without_valkey_nothing_is_known_and_nothing_fails() -> None:
    registry = WorkerRegistry(f"redis://127.0.0.1:{free_port()}/0")
    assert registry.report("one:1", LARGE) is False
    assert registry.machines() == []
    registry.forget("one:1")


def test_a_job_can_count_on_the_least_of_the_workers_with_a_gpu() -> None:
    assert common_machine([]) is None
    assert common_machine([NO_GPU]) == NO_GPU
    found = common_machine([LARGE, NO_GPU, SMALL])
    assert found is not None
    assert (found.device, found.devices, found.memory_bytes, found.free_bytes) == ("cuda", 1, 15 * GIB, 3 * GIB)


def test_gpu_that_cannot_be_used_counts_while_no_worker_has_a_usable_one() -> None:
    unusable = WorkerMachine(device="cpu", gpu_fault="the T4 cannot be used: it is too old.")
    found = common_machine([NO_GPU, unusable])
    assert found is not None
    assert (found.device, found.gpu_fault) == ("cpu", unusable.gpu_fault)
    found = common_machine([unusable, SMALL])
    assert found is not None
    assert (found.device, found.gpu_fault) == ("cuda", None)

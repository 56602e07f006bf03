"""``mens status``, ``mens jobs watch --events`` and the flags of ``mens train`` against a real API."""

from __future__ import annotations

import json

import pytest

from shared.worker_registry import WorkerMachine
from tests.support.builders import submission
from tests.support.cli_installation import CliInstallation

GIB = 1 << 30
MACHINE = WorkerMachine(
    device="cuda",
    device_name="H200",
    devices=2,
    memory_bytes=140 * GIB,
    free_bytes=100 * GIB,
    sandbox="landlock: 31 attacks were tried and stopped",
)

pytestmark = pytest.mark.network


@pytest.fixture(autouse=True)
def one_worker(installation: CliInstallation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.services.workers, "machines", lambda: [MACHINE])


def test_workers_show_what_they_report(installation: CliInstallation) -> None:
    line = "cuda\tH200\t2\t140.0 GiB\t100.0 GiB\t\tlandlock"
    assert installation.mens("status", "--workers").splitlines() == installation.mens("probe").splitlines() == [line]
    (found,) = json.loads(installation.mens("status", "--workers", "--json"))
    assert found == MACHINE.model_dump(mode="json")


def test_workers_name_a_gpu_that_cannot_be_used(installation: CliInstallation, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = "the H200 cannot be used: torch 2.13.0+cu130 needs driver 580 or newer. Update the driver."
    unusable = WorkerMachine(device="cpu", gpu_fault=fault)
    monkeypatch.setattr(installation.services.workers, "machines", lambda: [unusable])
    assert f"GPU_UNUSABLE: {fault}" in installation.mens("status", "--workers")


def test_fault_without_its_sentence_is_reported_by_its_code(
    installation: CliInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = WorkerMachine(device="cpu", fault="gpu-7:12 takes no job: its disk is full.", fault_code="STORAGE_FULL")
    monkeypatch.setattr(installation.services.workers, "machines", lambda: [faulty])
    assert installation.mens("status").splitlines()[-1] == faulty.fault
    installation.become("carol", tenant="acme")
    assert installation.mens("status").splitlines()[-1] == "STORAGE_FULL: a worker takes no job."


def test_status_shows_workers_and_jobs(installation: CliInstallation) -> None:
    first, *rest = installation.mens("status").splitlines()
    assert (first, rest) == ("1 worker, 2 GPUs", [])
    assert json.loads(installation.mens("status", "--json"))["jobs"] == []


def test_telemetry_is_printed_event_by_event(installation: CliInstallation) -> None:
    job, _ = installation.services.jobs.submit(submission())
    installation.services.jobs.cancel(job.id)
    for words in (("jobs", "watch", "--events"), ("watch-telemetry",)):
        created, cancelled, outcome = installation.mens(*words, job.id[:12], code=1).splitlines()
        assert [created[10:], cancelled[10:]] == ["Job created and queued.", "Job cancelled."]
        assert "cancelled" in outcome


def test_an_unknown_flag_of_train_is_refused_before_anything_is_sent(installation: CliInstallation, tmp_path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "response": "b"}\n')
    for flags, code in ((["--alhpa", "3"], "CONTRACT_INVALID"), (["--cloud", "auto"], "CONTRACT_UNSUPPORTED")):
        assert code in installation.mens("train", str(rows), "--model", "tiny", *flags, code=1)

"""Detection of idle processes by the processor time of a real process group, and the driver's table of GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from shared.errors import Code, JobFailed
from tests.support.waiting import eventually
from worker.watchdog.idle import IdleWatch, group_cpu_seconds, parse_shares

TABLE = "0, GPU-aa, 3\n1, GPU-bb, 97\n"


@pytest.mark.parametrize(
    ("table", "visible", "share"),
    [
        (TABLE, None, 0.97),
        (TABLE, "0", 0.03),
        (TABLE, "GPU-b", 0.97),
        (TABLE, "", None),
        ("0, GPU-aa, [N/A]\n", None, None),
        ("", None, None),
    ],
)
def test_shares_of_the_drivers_table(table: str, visible: str | None, share: float | None) -> None:
    assert parse_shares(table, visible) == share


@pytest.mark.parametrize("share", [None, 0.5])
def test_a_busy_gpu_or_one_that_cannot_be_queried_is_not_idle(share: float | None) -> None:
    now = [0.0]
    watch = IdleWatch(-1, 100.0, clock=lambda: now[0], gpu_share=lambda: share)
    now[0] = 1000.0
    watch.check()


def test_idle_is_reported_with_a_remedy() -> None:
    now = [0.0]
    watch = IdleWatch(-1, 100.0, clock=lambda: now[0], gpu_share=lambda: 0.02)
    now[0] = 101.0
    with pytest.raises(JobFailed) as failed:
        watch.check()
    assert (failed.value.code, failed.value.retryable) == (Code.TRAINER_IDLE, True)
    assert "MENS_TRAINER_IDLE_SECONDS" in failed.value.remedy


def test_processor_time_of_a_group_is_that_of_its_children_too() -> None:
    spin = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    child = subprocess.Popen([sys.executable, "-c", spin], process_group=0)
    try:
        assert eventually(lambda: group_cpu_seconds(child.pid) > 0.2)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

"""Notices an idle trainer: its processes compute nothing, and neither does its GPU (specification §13: 5 %)."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from shared.errors import Code, JobFailed
from shared.gpus.driver import QUERY_SECONDS, find_program, visible_names
from shared.gpus.usable import find_gpus
from worker.watchdog.rules import Termination

IDLE_SHARE = 0.05
"""A process group is idle if it uses less than this share of one processor, and its GPUs are busy for a smaller share
of the time."""
SAMPLE_SECONDS = 15.0
QUERY = ["--query-gpu=index,uuid,utilization.gpu", "--format=csv,noheader,nounits"]


class IdleWatch:
    """Compares how long a process group has been idle with its limit.

    Args:
        group: id of the process group.
        idle_seconds: how long the process may be idle.
        sample_seconds: interval between samples.
        clock: monotonic seconds.
        gpu_share: utilisation of its busiest GPU, 0 to 1; None: unknown. 0 without a GPU.
    """

    def __init__(
        self,
        group: int,
        idle_seconds: float,
        *,
        sample_seconds: float = SAMPLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        gpu_share: Callable[[], float | None] | None = None,
    ) -> None:
        self._group, self._idle_seconds, self._clock = group, idle_seconds, clock
        self._every = min(sample_seconds, idle_seconds / 4)
        self._gpu_share = gpu_share or busiest_gpu
        self._sampled_at = self._busy_at = clock()
        self._used = group_cpu_seconds(group)

    def check(self) -> None:
        """Take a sample, and raise an error if the group has been idle for too long.

        Raises:
            JobFailed: ``TRAINER_IDLE``, retryable.
        """
        now = self._clock()
        if now - self._sampled_at < self._every:
            return
        used = group_cpu_seconds(self._group)
        if used - self._used >= IDLE_SHARE * (now - self._sampled_at) or self._gpu_is_busy():
            self._busy_at = now
        self._sampled_at, self._used = now, used
        if now - self._busy_at > self._idle_seconds:
            idle = now - self._busy_at
            raise JobFailed(
                Code.TRAINER_IDLE,
                f"The trainer has used less than {IDLE_SHARE:.0%} of a processor, and of its GPU, for {idle:.0f} s.",
                remedy=(
                    "The job is retried from its last checkpoint. If it waits for a slow disk, raise "
                    "MENS_TRAINER_IDLE_SECONDS."
                ),
                details={"termination": str(Termination.IDLE), "idle_seconds": round(idle, 1)},
                retryable=True,
            )

    def _gpu_is_busy(self) -> bool:
        share = self._gpu_share()
        # Unmeasurable counts as busy: an attempt is not ended on unknown use.
        return share is None or share >= IDLE_SHARE


def group_cpu_seconds(group: int, proc: Path = Path("/proc")) -> float:
    """Return the processor seconds that the processes of a group have used, including their ended children."""
    ticks = 0
    for stat in proc.glob("[0-9]*/stat"):
        try:
            # The command's name, in brackets, may contain anything.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if len(fields) > 14 and int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def busiest_gpu() -> float | None:
    """Return the utilisation of the busiest GPU that a trainer of this worker sees, 0 to 1; None if it cannot be
    queried, 0 without a GPU.
    """
    if not find_gpus().gpus:
        return 0.0
    try:
        command = [find_program() or "nvidia-smi", *QUERY]
        table = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_shares(table, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_shares(table: str, visible: str | None) -> float | None:
    """Return the highest utilisation in the driver's table, 0 to 1; None if a GPU has no figure, e.g. because it is
    partitioned (MIG).

    Args:
        table: one line per GPU: index, uuid, percent.
        visible: the value of ``CUDA_VISIBLE_DEVICES``; None: all are seen.
    """
    shares = []
    for line in table.splitlines():
        number, uuid, percent = (part.strip() for part in line.split(",", 2))
        names = None if visible is None else visible_names(visible)
        if names is not None and not any(name == number or uuid.startswith(name) for name in names):
            continue
        if not percent.isdigit():
            return None
        shares.append(int(percent) / 100)
    return max(shares, default=None)

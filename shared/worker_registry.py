"""Machines of the workers: each worker reports its own to Valkey, and the API plans jobs for the reported ones.

The reports are short-lived, so they are not in the database: a worker that has not reported for a while counts as gone.
Without Valkey no machine is known, and only the worker can refuse a job for lack of memory.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

KEY = "mens:workers"
REPORT_SECONDS = 30.0
# A worker outlives two lost reports.
LIVE_SECONDS = 3 * REPORT_SECONDS
TIMEOUT_SECONDS = 2.0

logger = logging.getLogger(__name__)


class WorkerMachine(BaseModel):
    """The machine that a worker trains on; None is unknown.

    Attributes:
        device: device on which a job with device ``auto`` trains.
        device_name: name of the GPUs.
        devices: number of GPUs that share a job.
        memory_bytes: memory of the smallest of its GPUs.
        free_bytes: the part of it that other programs have left.
        host_bytes: main memory that it may use.
        cores: number of CPU cores that it may use.
        sandbox: a sentence on the sandbox for graders' code, or on why it has no sandbox.
        fault: a sentence with the worker's name that says why it takes no job now, e.g. a full disk.
        fault_code: error code of the fault.
        release: version of the worker.
        disk_bytes: size of the disk of its run folders.
        disk_free_bytes: free bytes of that disk.
        gpu_fault: sentences that say why a GPU that the driver shows is not used, and what to do about it.
    """

    model_config = ConfigDict(frozen=True)
    device: Literal["cpu", "cuda"]
    device_name: str = ""
    devices: int = 0
    memory_bytes: int | None = None
    free_bytes: int | None = None
    host_bytes: int | None = None
    cores: int | None = None
    sandbox: str | None = None
    fault: str | None = None
    fault_code: str | None = None
    gpu_fault: str | None = None
    release: str | None = None
    disk_bytes: int | None = None
    disk_free_bytes: int | None = None

    def for_tenants(self) -> WorkerMachine:
        """Return the facts that planning a job needs, without those that only operators may know: worker names,
        releases and disks.
        """
        return self.model_copy(update=dict.fromkeys(("fault", "release", "disk_bytes", "disk_free_bytes")))


class _Entry(BaseModel):
    """A report and its time, by Valkey's clock."""

    seen_at: float
    machine: WorkerMachine


class WorkerRegistry:
    """Reports of workers, in one hash by their names."""

    def __init__(self, broker_url: str) -> None:
        self._redis: Any = Redis.from_url(
            broker_url,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),  # a submission waits for this
        )

    def report(self, worker: str, machine: WorkerMachine) -> bool:
        """Report a worker's machine; return False if Valkey does not accept it."""
        try:
            entry = _Entry(seen_at=self._now(), machine=machine)
            self._redis.hset(KEY, worker, entry.model_dump_json())
        except RedisError as error:
            logger.warning("the machine of %s could not be reported: %s", worker, error)
            return False
        return True

    def forget(self, worker: str) -> None:
        """Remove a worker that stops."""
        try:
            self._redis.hdel(KEY, worker)
        except RedisError as error:
            logger.warning("%s could not be removed: %s", worker, error)

    def machines(self) -> list[WorkerMachine]:
        """Return the machines of live workers; empty if Valkey does not respond."""
        try:
            entries = {name: _parse(raw) for name, raw in self._redis.hgetall(KEY).items()}
            # A report from the future was made before the clock was set back; a live worker soon replaces it.
            now = self._now()
            live = {
                name: entry for name, entry in entries.items() if entry and abs(now - entry.seen_at) <= LIVE_SECONDS
            }
            if gone := entries.keys() - live.keys():
                self._redis.hdel(KEY, *gone)
        except RedisError as error:
            logger.warning("the workers' machines are not known: %s", error)
            return []
        return [entry.machine for entry in live.values()]

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _now(self) -> float:
        seconds, microseconds = self._redis.time()
        return float(seconds) + float(microseconds) / 1e6


def common_machine(machines: Sequence[WorkerMachine]) -> WorkerMachine | None:
    """Return the resources that all of these workers have, which are the minimum of each; None without workers."""
    gpus = [machine for machine in machines if machine.device == "cuda"]
    if not machines:
        return None
    # If some have a GPU, those without one are expected to take small jobs only.
    planned = gpus or machines
    return WorkerMachine(
        device=planned[0].device,
        device_name=planned[0].device_name,
        devices=min(machine.devices for machine in planned),
        memory_bytes=_least([machine.memory_bytes for machine in planned]),
        free_bytes=_least([machine.free_bytes for machine in planned]),
        host_bytes=_least([machine.host_bytes for machine in planned]),
        cores=_least([machine.cores for machine in planned]),
        # Any of them may take the job.
        gpu_fault=next((machine.gpu_fault for machine in planned if machine.gpu_fault), None),
    )


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _parse(raw: bytes) -> _Entry | None:
    try:
        return _Entry.model_validate_json(raw)
    except ValidationError:
        return None

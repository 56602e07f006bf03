"""This worker's machine: its GPUs and memory, as torch and the driver describe them, reported to the API."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from shared.errors import MensError
from shared.gpus.usable import find_gpus
from shared.host import allowed_cores, allowed_memory
from shared.sandbox.levels import Choice
from shared.sandbox.probe import report_of_machine
from shared.worker_registry import REPORT_SECONDS, WorkerMachine, WorkerRegistry

FAULT_SECONDS = 1.0
"""Seconds after which the worker's fault is checked again while the next report is not due."""

logger = logging.getLogger(__name__)


def describe_machine(processes: int, gpu_share: float = 1.0) -> WorkerMachine:
    """Describe this machine as a trainer that starts now would find it.

    Args:
        processes: processes that share a job, each on its own GPU; 0 means one per GPU.
        gpu_share: the trainer's share of a GPU's memory.
    """
    host, visible = allowed_memory(), find_gpus()
    if not visible.gpus:
        return WorkerMachine(device="cpu", host_bytes=host, cores=allowed_cores(), gpu_fault=visible.fault)
    return WorkerMachine(
        device="cuda",
        device_name=visible.gpus[0].name,
        devices=min(processes, len(visible.gpus)) if processes else len(visible.gpus),
        memory_bytes=int(gpu_share * min(gpu.memory_bytes for gpu in visible.gpus)),
        free_bytes=visible.free_bytes,
        host_bytes=host,
        cores=allowed_cores(),
    )


def _release_and_disk(runs_dir: Path | None) -> Mapping[str, object]:
    """Return the fields of the release, and of the disk of a folder; unknown fields are left out."""
    fields: dict[str, object] = {}
    with suppress(PackageNotFoundError):
        fields["release"] = version("mens")
    if runs_dir is not None:
        with suppress(OSError):
            usage = shutil.disk_usage(runs_dir)
            # Some file systems report no figures: total and free are 0.
            fields |= {"disk_bytes": usage.total, "disk_free_bytes": usage.free} if usage.total else {}
    return fields


class MachineReporter:
    """Reports this machine from a thread of its own, until it is stopped.

    Args:
        sandbox: ``MENS_SANDBOX``. The level that holds on this machine is determined by attacks, between the first and
            the second report.
        runs_dir: folder whose disk is described; None: no disk is described.
        gpu_share: see :func:`describe_machine`.
        fault: returns the reason why this worker takes no job now, if any.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        worker: str,
        processes: int,
        sandbox: Choice,
        every_seconds: float = REPORT_SECONDS,
        fault: Callable[[], MensError | None] = lambda: None,
        runs_dir: Path | None = None,
        gpu_share: float = 1.0,
    ) -> None:
        self._registry, self._worker, self._every = registry, worker, every_seconds
        self._processes, self._sandbox, self._fault = processes, sandbox, fault
        self._runs_dir, self._gpu_share = runs_dir, gpu_share
        self._reported: str | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="machine-reporter", daemon=True)

    def start(self) -> None:
        """Report now and then at regular intervals."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reporting; the worker then counts as gone immediately."""
        self._done.set()
        self._thread.join()
        self._registry.forget(self._worker)

    def _run(self) -> None:
        self._report(None)
        while not self._done.is_set():
            # Determined once per process.
            self._report(report_of_machine(self._sandbox).statement)
            self._wait()

    def _wait(self) -> None:
        """Wait until the next report: a fault that appears or disappears is reported soon, because an operator may be
        waiting for it to end.
        """
        end = time.monotonic() + self._every
        while not self._done.wait(min(self._every, FAULT_SECONDS)):
            if time.monotonic() >= end or self._fault_code() != self._reported:
                return

    def _fault_code(self) -> str | None:
        fault = self._fault()
        return str(fault.code) if fault else None

    def _report(self, sandbox: str | None) -> None:
        try:
            fault = self._fault()
            state: dict[str, object] = {"sandbox": sandbox, **_release_and_disk(self._runs_dir)}
            if fault:
                state |= {"fault": f"{self._worker} takes no job: {fault}", "fault_code": str(fault.code)}
            # A report that did not arrive is sent again soon.
            machine = describe_machine(self._processes, self._gpu_share).model_copy(update=state)
            if self._registry.report(self._worker, machine):
                self._reported = str(fault.code) if fault else None
        except Exception:
            # Without reports the API plans as if it knew nothing; jobs continue.
            logger.exception("the machine could not be described")

"""This worker's machine: its GPUs and memory, found without CUDA and reported to the API.

A worker's task never loads torch, so the driver's command-line program is queried.
"""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.host import allowed_cores, allowed_memory
from shared.sandbox.levels import Choice
from shared.sandbox.probe import report_of_machine
from shared.worker_registry import REPORT_SECONDS, WorkerMachine, WorkerRegistry

QUERY = ["nvidia-smi", "--query-gpu=index,uuid,memory.total,memory.free,name", "--format=csv,noheader,nounits"]
QUERY_SECONDS = 20.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver describes it; sizes in bytes."""

    number: str
    uuid: str
    total: int
    free: int
    name: str


def describe_machine(processes: int) -> WorkerMachine:
    """Describe this machine as a trainer that starts now will find it.

    Args:
        processes: processes that share a job, each on its own GPU; 0 means one per GPU.
    """
    host, count = allowed_memory(), visible_gpus()
    if not count:
        return WorkerMachine(device="cpu", host_bytes=host, cores=allowed_cores())
    gpus = chosen_gpus(query_gpus(), os.environ)
    return WorkerMachine(
        device="cuda",
        device_name=gpus[0].name if gpus else "",
        devices=min(processes, count) if processes else count,
        memory_bytes=min((gpu.total for gpu in gpus), default=None),
        free_bytes=min((gpu.free for gpu in gpus), default=None),
        host_bytes=host,
        cores=allowed_cores(),
    )


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """Return the number of GPUs that CUDA would show, without CUDA: a worker's task never loads torch."""
    here = len([path for path in devices.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit()])
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return here if named is None else min(here, len(visible_names(named)))


def visible_names(named: str) -> list[str]:
    """Return the devices that a value of ``CUDA_VISIBLE_DEVICES`` exposes: CUDA stops at the first invalid one."""
    return list(itertools.takewhile(lambda name: name not in ("", "-1"), (name.strip() for name in named.split(","))))


def query_gpus() -> list[Gpu]:
    """Return every GPU that the driver reports; an empty list if the driver cannot be queried."""
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the GPUs' memory is not known: %s", error)
        return []
    return parse_gpus(answer)


def parse_gpus(answer: str) -> list[Gpu]:
    """Parse the driver's table, one GPU per line; GPUs without a memory figure, e.g. in parts (MIG), are left out."""
    gpus = []
    for line in answer.splitlines():
        number, uuid, total, free, name = (part.strip() for part in line.split(",", 4))
        if total.isdigit() and free.isdigit():
            gpus.append(Gpu(number, uuid, int(total) << 20, int(free) << 20, name))
    return gpus


def chosen_gpus(gpus: list[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that the environment exposes to CUDA, named by index or by a prefix of their uuid."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return gpus
    names = visible_names(named)
    return [gpu for gpu in gpus if any(name == gpu.number or gpu.uuid.startswith(name) for name in names)]


class MachineReporter:
    """Reports this machine from a thread of its own, until it is stopped.

    Args:
        sandbox: ``MENS_SANDBOX``. The level that holds here is found by attacks, between the first and the second
            report.
        fault: returns the reason for which this worker takes no job now, if there is one.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        worker: str,
        processes: int,
        sandbox: Choice,
        every_seconds: float = REPORT_SECONDS,
        fault: Callable[[], object | None] = lambda: None,
    ) -> None:
        self._registry, self._worker, self._every = registry, worker, every_seconds
        self._processes, self._sandbox, self._fault = processes, sandbox, fault
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="machine-reporter", daemon=True)

    def start(self) -> None:
        """Report now, and regularly from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reporting; the worker counts as gone at once."""
        self._done.set()
        self._thread.join()
        self._registry.forget(self._worker)

    def _run(self) -> None:
        self._report(None)
        while not self._done.is_set():
            # Determined once per process.
            self._report(report_of_machine(self._sandbox).statement)
            self._done.wait(self._every)

    def _report(self, sandbox: str | None) -> None:
        try:
            fault = self._fault()
            state = {"sandbox": sandbox, "fault": f"{self._worker} takes no job: {fault}" if fault else None}
            self._registry.report(self._worker, describe_machine(self._processes).model_copy(update=state))
        except Exception:
            # Without reports the API plans as if it knew nothing; the jobs go on.
            logger.exception("the machine could not be described")

"""The machine that a job is planned for, from its worker's report."""

from __future__ import annotations

from shared.contract.choices import BaseQuant
from shared.preflight.types import Machine, ServingLimits
from shared.worker_registry import WorkerMachine


def machine_of(
    worker: WorkerMachine | None,
    *,
    limits: ServingLimits | None = None,
    tokens_per_second: float | None = None,
    measured_by: str | None = None,
    other_seconds: float | None = None,
    origin: str = "the workers",
    quant_base: str = BaseQuant.AUTO,
    thorough: bool = True,
) -> Machine:
    """Make a preflight's machine from a worker's report.

    Args:
        worker: the machine that the job will train on; None: unknown.
        limits: limits of the serving tier.
        tokens_per_second, measured_by, other_seconds, origin, quant_base, thorough: see :class:`Machine`.
    """
    if worker is None:
        return Machine(
            limits=limits,
            tokens_per_second=tokens_per_second,
            measured_by=measured_by,
            other_seconds=other_seconds,
            quant_base=BaseQuant(quant_base),
            thorough=thorough,
        )
    return Machine(
        device=worker.device,
        vram_bytes=worker.memory_bytes,
        free_bytes=worker.free_bytes,
        devices=max(1, worker.devices),
        host_bytes=worker.host_bytes,
        cores=worker.cores,
        device_name=worker.device_name,
        gpu_fault=worker.gpu_fault,
        origin=origin,
        limits=limits,
        tokens_per_second=tokens_per_second,
        measured_by=measured_by,
        other_seconds=other_seconds,
        quant_base=BaseQuant(quant_base),
        thorough=thorough,
    )

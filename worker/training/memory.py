"""Memory: what a run took against what the estimate had said, and what is done when a step runs out of it."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from shared.contract import FineTuneContract
from shared.estimate import CPU_RUNTIME_BYTES, RUNTIME_BYTES, estimate
from worker.process import is_out_of_memory
from worker.training.batches import MicroBatch
from worker.training.budget import Budget
from worker.training.checkpoint import Progress
from worker.training.model import compute_dtype, read_config

T = TypeVar("T")


def memory_report(
    contract: FineTuneContract, base: Path, rows: int, device: torch.device, budget: Budget
) -> dict[str, object]:
    """Peak memory of this process against the estimate, in bytes, with the kind of device.

    On a GPU the peak is what torch's allocator held at most, beside the device context; on a CPU it is the resident set
    of the whole process, Python and libraries included, so the two kinds are never to be compared.
    """
    config = read_config(base)
    on_gpu = device.type == "cuda"
    element_bytes = compute_dtype(device).itemsize
    runtime_bytes = RUNTIME_BYTES if on_gpu else CPU_RUNTIME_BYTES
    needs = estimate(
        contract,
        config,
        rows=rows,
        checkpointing=budget.checkpointing,
        compute_bytes=element_bytes,
        runtime_bytes=runtime_bytes,
    )
    predicted = budget.predicted_bytes or needs.vram_bytes
    return {"device": device.type, "predicted_bytes": predicted, "peak_bytes": peak_bytes(device)}


def peak_bytes(device: torch.device) -> int:
    """The most memory that this process has held so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


def retry_on_out_of_memory(
    lay_out: Callable[[int], list[MicroBatch]],
    work: Callable[[list[MicroBatch]], T],
    progress: Progress,
    *,
    retry: bool = True,
) -> tuple[T, list[MicroBatch]]:
    """Do a step's forward and backward pass; when memory runs out again, in half the micro-batch, down to single rows.

    The step has the same rows either way, so the same gradient up to rounding. The smaller micro-batch stays for the
    rest of the run, and is part of its checkpoints. The random generators start where they did.

    Args:
        lay_out: cuts the step's rows into micro-batches of at most so many tokens.
        work: the pass over micro-batches; begins without gradients.
        retry: false where other processes are in the middle of the same pass and could not begin it again.

    Raises:
        RuntimeError: the allocator's own complaint, when not even the longest row fits alone.
    """
    batches = lay_out(progress.token_budget)
    on_cpu = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # of this process's device alone
    while True:
        try:
            return work(batches), batches
        except RuntimeError as error:
            if not (retry and is_out_of_memory(error)):
                raise
            largest = max(batch.size for batch in batches)
            smaller = lay_out(max(1, largest // 2))
            if max(batch.size for batch in smaller) >= largest:  # the longest row alone
                raise
        gc.collect()  # here, not above: the exception's frames hold what the failed pass had made
        torch.cuda.empty_cache()
        torch.set_rng_state(on_cpu)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)
        batches, progress.token_budget = smaller, max(1, largest // 2)
        progress.memory_retries += 1

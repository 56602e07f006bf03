"""Predicted against measured: how much memory a run took, and how much the estimate had said."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import torch

from shared.contract import FineTuneContract
from shared.estimate import CPU_RUNTIME_BYTES, RUNTIME_BYTES, estimate
from shared.model_config import parse_model_config
from worker.training.model import compute_dtype


def memory_report(contract: FineTuneContract, base: Path, rows: int, device: torch.device) -> dict[str, object]:
    """Peak memory of this process against the estimate, in bytes, with the kind of device.

    On a GPU the peak is what torch's allocator held at most, beside the device context; on a CPU it is the resident set
    of the whole process, Python and libraries included, so the two kinds are never to be compared.
    """
    config = parse_model_config(json.loads((base / "config.json").read_bytes()))
    on_gpu = device.type == "cuda"  # where the engine recomputes activations (`worker/training/model.py`)
    element_bytes = compute_dtype(device).itemsize
    runtime_bytes = RUNTIME_BYTES if on_gpu else CPU_RUNTIME_BYTES
    needs = estimate(
        contract,
        config,
        rows=rows,
        checkpointing=on_gpu,
        compute_bytes=element_bytes,
        runtime_bytes=runtime_bytes,
    )
    return {"device": device.type, "predicted_bytes": needs.vram_bytes, "peak_bytes": peak_bytes(device)}


def peak_bytes(device: torch.device) -> int:
    """The most memory that this process has held so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB

"""Probe sequences: a few encoded rows, by token id, with which the serving tier is asked what the adapter does there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel

from worker.rundir import PROBES_NAME, write_json
from worker.training.prepared import Row
from worker.training.scoring import score_probes

MAX_PROBES = 4
MAX_TOKENS = 256


def make_probes(
    rows: Sequence[Row], model: PeftModel | None = None, device: torch.device | None = None
) -> list[dict[str, Any]]:
    """Token ids, the positions (≥ 1) whose log-probabilities are compared, and the model's own.

    Positions are those the adapter was trained to change: the assistant's tokens.

    Args:
        rows: the first of them become probes.
        model: the model at the end of training, on ``device``; its log-probabilities (nats, one a position) go into
            ``trained``. None: they are left out, and the base shift cannot be told.
        device: the model's.
    """
    probes = [probe for row in rows[:MAX_PROBES] if (probe := _probe(row))["positions"]]
    if model is not None and device is not None:
        for probe, scores in zip(probes, score_probes(model, probes, device), strict=True):
            probe["trained"] = scores
    return probes


def write_probes(run_dir: Path, probes: Sequence[dict[str, Any]]) -> None:
    """Write ``probes.json``."""
    write_json(run_dir / PROBES_NAME, {"probes": probes})


def _probe(row: Row) -> dict[str, Any]:
    ids, weights = row.ids[-MAX_TOKENS:].tolist(), row.weights[-MAX_TOKENS:]
    return {"token_ids": ids, "positions": [int(at) for at in np.flatnonzero(weights) if at]}

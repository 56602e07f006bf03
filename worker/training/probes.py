"""Probe sequences: a few encoded rows, by token id, on which the serving tier's and the trainer's log-probabilities are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel

from worker.run_folder import PROBES_NAME, write_json
from worker.training.data.prepared import Row
from worker.training.model.load import packs

MAX_PROBES = 4
MAX_TOKENS = 256


def make_probes(
    rows: Sequence[Row], model: PeftModel | None = None, device: torch.device | None = None
) -> list[dict[str, Any]]:
    """Return token ids, the positions (≥ 1) whose log-probabilities are compared, and the model's own.

    Positions are those the adapter was trained to change: the assistant's tokens.

    Args:
        rows: rows, of which the first become probes.
        model: the model at the end of training, on ``device``; its log-probabilities (nats, one per position) go into
            ``trained``. None: they are left out, and the base shift cannot be reported.
        device: the model's device.
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


def score_probes(model: PeftModel, probes: Sequence[dict[str, Any]], device: torch.device) -> list[list[float]]:
    """Return the log-probability (nats) of every probe's tokens at its positions, each given all tokens before it.

    One probe at a time and only the hidden rows that count go through the head, so it needs less memory than a step.

    Args:
        model: the trained model, quantised or not; left in evaluation mode.
        probes: token ids and positions (≥ 1), see `worker/training/probes.py`.
        device: the model's device.
    """
    model.eval()
    return [_score(model, probe["token_ids"], probe["positions"], device) for probe in probes]


@torch.no_grad()
def _score(model: PeftModel, token_ids: list[int], positions: list[int], device: torch.device) -> list[float]:
    base, length = model.get_base_model(), len(token_ids)
    ids, at = torch.tensor([token_ids], device=device), torch.tensor(positions, device=device)
    document = {"cu_seq_lens_q": torch.tensor([0, length], dtype=torch.int32, device=device), "max_length_q": length}
    hidden = base.get_decoder()(
        input_ids=ids,
        position_ids=torch.arange(length, device=device)[None],
        use_cache=False,
        **(document if packs(base) else {}),
    ).last_hidden_state[0]
    logits = base.get_output_embeddings()(hidden[at - 1]).float()
    scores: list[float] = logits.log_softmax(-1).gather(-1, ids[0, at, None])[:, 0].tolist()
    return scores

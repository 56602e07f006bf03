"""Probe sequences: a few encoded rows, by token id, on which the serving tier's and the trainer's log-probabilities are compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel

from worker.run_folder import DEPTHS, PROBES_NAME, write_json
from worker.training.data.prepared import Row
from worker.training.model.load import packs

MAX_PROBES = 4
MAX_TOKENS = 256
DEEPEST = {"cpu": DEPTHS[2], "cuda": DEPTHS[-1]}
"""Largest number of tokens of the deep probe by the trainer's device. Both sides score it in one forward pass, which on a
CPU would take minutes beyond that.
"""
DEEP_ROWS = 256
"""Number of rows among which the longest are searched for."""
DEEP_POSITIONS = 64
"""Number of positions of the deep probe in each range of depths."""


def make_probes(
    rows: Sequence[Row], model: PeftModel | None = None, device: torch.device | None = None, window: int = 0
) -> list[dict[str, Any]]:
    """Return token ids, the positions (≥ 1) whose log-probabilities are compared, and the model's own
    log-probabilities.

    Positions are those the adapter was trained to change: the assistant's tokens.

    Args:
        rows: rows, of which the first become probes.
        model: the model in its current state, on ``device``; its log-probabilities (nats, one per position) go into
            ``trained``. None: they are left out, and the base shift cannot be reported.
        device: the model's device.
        window: the contract's maximum row length. Above `MAX_TOKENS`, one more probe has this many tokens, at most
            the device's `DEEPEST`.
    """
    probes = [probe for row in rows[:MAX_PROBES] if (probe := _probe(row))["positions"]]
    deepest = DEEPEST["cpu" if device is None else device.type]
    if probes and (deep := _deep_probe(rows, min(window, deepest))):
        probes.append(deep)
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


def _deep_probe(rows: Sequence[Row], length: int) -> dict[str, Any] | None:
    """Return a probe whose positions lie beyond those of the others: the longest row or, if it is too short, several
    rows end to end, which both sides score as one document; None if the window has no such positions.
    """
    if length <= MAX_TOKENS:
        return None
    some = [rows[number] for number in range(min(len(rows), DEEP_ROWS))]
    longest_first = sorted((row for row in some if row.weights.any()), key=lambda row: -len(row.ids))
    joined, tokens = [], 0
    for row in cycle(longest_first):
        joined.append(row)
        if (tokens := tokens + len(row.ids)) >= length:
            break
    if not joined:
        return None
    ids = np.concatenate([row.ids for row in joined])[:length]
    weights = np.concatenate([row.weights for row in joined])[:length]
    positions = [at for begin, end in pairwise(DEPTHS) for at in _last_of(weights, begin, end)]
    return {"token_ids": ids.tolist(), "positions": positions, "stretched": len(joined) > 1} if positions else None


def _last_of(weights: np.ndarray, begin: int, end: int) -> list[int]:
    """Return the last supervised positions within a range of depths."""
    return [int(at) + begin for at in np.flatnonzero(weights[begin:end])][-DEEP_POSITIONS:]


def score_probes(model: PeftModel, probes: Sequence[dict[str, Any]], device: torch.device) -> list[list[float]]:
    """Return the log-probability (nats) of every probe's tokens at its positions, each given all tokens before it.

    Probes are scored one at a time, and only the needed hidden rows go through the head, so this takes less memory than
    a step.

    Args:
        model: the trained model, quantised or not; left in evaluation mode.
        probes: as :func:`make_probes` returns them.
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

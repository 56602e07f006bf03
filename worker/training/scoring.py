"""Teacher-forced log-probabilities of probe tokens, as the trainer's model gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peft import PeftModel

from worker.training.model import packs


def score_probes(model: PeftModel, probes: Sequence[dict[str, Any]], device: torch.device) -> list[list[float]]:
    """Log-probability (nats) of every probe's tokens at its positions, each given all tokens before it.

    One probe at a time and only the hidden rows that count go through the head, so it needs less memory than a step.

    Args:
        model: the trained model, quantised or not; left in evaluation mode.
        probes: token ids and positions (≥ 1), see `worker/training/probes.py`.
        device: the model's.
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

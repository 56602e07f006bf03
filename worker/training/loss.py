"""The loss: cross-entropy over supervised positions, summed, so that any grouping of rows gives the same gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shared.labels import IGNORED, Example
from worker.training.batches import Batch, collate
from worker.training.telemetry import Score


def token_losses(model: torch.nn.Module, batch: Batch, device: torch.device) -> tuple[torch.Tensor, float]:
    """Summed cross-entropy in nats (a scalar to differentiate), and how many targets the arg-max predicts."""
    labels = batch.labels[:, 1:].to(device)
    output = model(input_ids=batch.ids.to(device), attention_mask=batch.attention_mask.to(device), use_cache=False)
    logits = output.logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    hits = ((logits.argmax(-1) == labels) & (labels != IGNORED)).sum().item()
    return loss, float(hits)


def accumulate_gradients(model: torch.nn.Module, batches: Sequence[Batch], device: torch.device) -> Score:
    """Backward over the micro-batches of one step: the gradient of the mean loss per supervised token of all of them.

    Each micro-batch weighs what its tokens weigh, so accumulation over unequal lengths equals one large batch exactly.
    """
    model.train()
    targets = sum(batch.targets for batch in batches)
    loss_sum = correct = 0.0
    for batch in batches:
        loss, hits = token_losses(model, batch, device)
        (loss / targets).backward()
        loss_sum, correct = loss_sum + loss.item(), correct + hits
    return Score(loss_sum / targets, correct / targets, targets)


@torch.no_grad()
def evaluate(
    model: torch.nn.Module, examples: Sequence[Example], rows: int, pad_token: int, device: torch.device
) -> Score | None:
    """Score of the model on examples, ``rows`` at a time; None when there are none."""
    if not examples:
        return None
    model.eval()
    loss_sum = correct = 0.0
    targets = 0
    for start in range(0, len(examples), rows):
        batch = collate(examples[start : start + rows], pad_token)
        loss, hits = token_losses(model, batch, device)
        loss_sum, correct, targets = loss_sum + loss.item(), correct + hits, targets + batch.targets
    return Score(loss_sum / targets, correct / targets, targets)

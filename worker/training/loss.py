"""The loss: cross-entropy over supervised positions, summed, so that any grouping of rows gives the same gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from peft import PeftModel

from worker.training.data.batches import MicroBatch
from worker.training.model.lm_head import head_loss
from worker.training.reporting.telemetry import Score


def weighted_loss(
    model: PeftModel, batch: MicroBatch, device: torch.device, divisor: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted sum of cross-entropies in nats (a scalar to differentiate), and how many targets the arg-max predicts.

    Only the hidden rows that predict a target go through the head.

    Args:
        divisor: of the loss; it goes into the weights, which are fp32: a gradient in bf16 would round it.
    """
    base = model.get_base_model()
    hidden = base.get_decoder()(
        input_ids=batch.ids.to(device, non_blocking=True),
        attention_mask=None if batch.mask is None else batch.mask.to(device),
        position_ids=batch.positions.to(device, non_blocking=True),
        use_cache=False,
        **_documents(batch, device),
    ).last_hidden_state
    rows = hidden.flatten(0, 1).index_select(0, batch.predictors.to(device))
    return head_loss(base.get_output_embeddings(), rows, batch.targets.to(device), batch.weights.to(device) / divisor)


def accumulate_gradients(
    model: PeftModel, batches: Sequence[MicroBatch], device: torch.device, weight_sum: float | None = None
) -> Score:
    """Backward over the micro-batches of one step: the gradient of the mean loss per supervised token of all of them.

    Each micro-batch weighs what its tokens weigh, so accumulation over unequal lengths equals one large batch exactly.

    Args:
        mass: what the loss is divided by when other processes hold micro-batches of the same step; else these batches' own.

    Returns:
        the score of these micro-batches, the loss divided by ``mass``; zeros when there are none.
    """
    if not batches:
        return Score(0.0, 0.0, 0)
    model.train()
    divisor = weight_sum or sum(batch.weight_sum for batch in batches)
    losses, corrects = [], []
    for batch in batches:
        loss, correct = weighted_loss(model, batch, device, divisor)
        loss.backward()
        losses.append(loss.detach())
        corrects.append(correct)
    targets = sum(len(batch.targets) for batch in batches)
    return Score(torch.stack(losses).sum().item(), torch.stack(corrects).sum().item() / max(targets, 1), targets)


@torch.no_grad()
def evaluate(
    model: PeftModel,
    batches: Iterable[MicroBatch],
    device: torch.device,
    add_up: Callable[[Sequence[float]], Sequence[float]] = tuple,
) -> Score | None:
    """Score of the model on micro-batches; None when there are none.

    Args:
        add_up: adds each number up over the processes that share the micro-batches.
    """
    model.eval()
    losses, corrects, weight_sum, targets = [], [], 0.0, 0
    for batch in batches:
        loss, correct = weighted_loss(model, batch, device)
        losses.append(loss)
        corrects.append(correct)
        weight_sum, targets = weight_sum + batch.weight_sum, targets + len(batch.targets)
    total_loss, total_correct, total_mass, total_targets = add_up([_sum(losses), _sum(corrects), weight_sum, targets])
    if not total_targets:
        return None
    return Score(total_loss / total_mass, total_correct / total_targets, int(total_targets))


def _sum(scalars: Sequence[torch.Tensor]) -> float:
    return torch.stack(list(scalars)).sum().item() if scalars else 0.0


def _documents(batch: MicroBatch, device: torch.device) -> dict[str, object]:
    """What `worker/training/model/attention.py` needs to keep documents apart."""
    if batch.boundaries is None:
        return {}
    longest = int(batch.boundaries.diff().max())
    return {"cu_seq_lens_q": batch.boundaries.to(device), "max_length_q": longest}

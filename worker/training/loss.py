"""A step's gradients and a validation's score: sums over micro-batches, the same however a step is cut into them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from peft import PeftModel

from worker.training.method import Batch, Method
from worker.training.metrics import Score


def accumulate_gradients(
    method: Method[Any, Any],
    model: PeftModel,
    batches: Sequence[Batch],
    device: torch.device,
    weight_sum: float | None = None,
) -> Score:
    """Backward over the micro-batches of one step: the gradient of the mean loss per supervised token of all of them.

    Each micro-batch weighs what its tokens weigh, so accumulation over unequal lengths equals one large batch exactly.

    Args:
        weight_sum: what the loss is divided by when other processes hold micro-batches of the same step; else these
            batches' own.

    Returns:
        the score of these micro-batches, the loss divided by ``weight_sum``; zeros when there are none.
    """
    if not batches:
        return Score(0.0, 0.0, 0)
    model.train()
    divisor = weight_sum or sum(batch.weight_sum for batch in batches)
    losses, corrects = [], []
    for batch in batches:
        loss, correct = method.loss(model, batch, device, divisor)
        loss.backward()
        losses.append(loss.detach())
        corrects.append(correct)
    targets = sum(batch.target_count for batch in batches)
    return Score(torch.stack(losses).sum().item(), torch.stack(corrects).sum().item() / max(targets, 1), targets)


@torch.no_grad()
def evaluate(
    method: Method[Any, Any],
    model: PeftModel,
    batches: Iterable[Batch],
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
        loss, correct = method.loss(model, batch, device)
        losses.append(loss)
        corrects.append(correct)
        weight_sum, targets = weight_sum + batch.weight_sum, targets + batch.target_count
    sums = [_sum(losses), _sum(corrects), weight_sum, targets]
    total_loss, total_correct, total_weight, total_targets = add_up(sums)
    if not total_targets:
        return None
    return Score(total_loss / total_weight, total_correct / total_targets, int(total_targets))


def _sum(scalars: Sequence[torch.Tensor]) -> float:
    return torch.stack(list(scalars)).sum().item() if scalars else 0.0

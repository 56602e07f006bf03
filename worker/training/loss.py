"""A step's gradients and a validation's score: sums over micro-batches, the same however a step is divided."""

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
    """Accumulate the gradient of a step's mean loss per supervised token over its micro-batches.

    Each micro-batch is weighted by its tokens, so accumulation over unequal lengths equals one large batch exactly.

    Args:
        weight_sum: divisor of the loss if other processes hold micro-batches of the same step; otherwise these batches'
            own sum.

    Returns:
        the score of these micro-batches, the loss divided by ``weight_sum``; zeros without micro-batches.
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
    """Return the model's score on micro-batches; None without targets.

    Args:
        add_up: sums each number over the processes that share the micro-batches.
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

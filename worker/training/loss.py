"""A step's gradients and a validation's score. Both are sums over micro-batches, and do not depend on how a step is
divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from peft import PeftModel

from worker.training.method import Batch, BatchLoss, Method
from worker.training.metrics import Score


class StepSums(NamedTuple):
    """Sums over a step's micro-batches, still on the device: reading one waits for all work queued there.

    Attributes:
        loss: loss, divided by the step's weight sum.
        correct: number of targets that the arg-max predicts.
        targets: number of targets.
        further: sums of the training method by name.
    """

    loss: torch.Tensor
    correct: torch.Tensor
    targets: int
    further: Mapping[str, torch.Tensor] = {}

    def read(self, *more: torch.Tensor) -> tuple[Score, list[float]]:
        """Return the score, and the values of further scalars, by one copy from the device."""
        scalars = (self.loss, self.correct, *self.further.values(), *more)
        loss, correct, *values = torch.stack([scalar.float() for scalar in scalars]).tolist()
        count = len(self.further)
        sums = dict(zip(self.further, values[:count], strict=True))
        return Score(loss, correct / max(self.targets, 1), self.targets, sums), values[count:]


def accumulate_gradients(
    method: Method[Any, Any],
    model: PeftModel,
    batches: Sequence[Batch],
    device: torch.device,
    weight_sum: float | None = None,
) -> StepSums:
    """Accumulate the gradient of a step's mean loss per supervised token over its micro-batches.

    Each micro-batch is weighted by its tokens, so accumulation over micro-batches of different sizes exactly equals one
    large batch.

    Args:
        weight_sum: divisor of the loss if other processes hold micro-batches of the same step; otherwise these batches'
            own sum.

    Returns:
        the sums of these micro-batches; zeros without micro-batches.
    """
    if not batches:
        nothing = torch.zeros((), device=device)
        return StepSums(nothing, nothing, 0, dict.fromkeys(method.sums, nothing))
    model.train()
    divisor = weight_sum or sum(batch.weight_sum for batch in batches)
    losses: list[BatchLoss] = []
    for batch in batches:
        part = method.loss(model, batch, device, divisor)
        part.loss.backward()
        losses.append(part._replace(loss=part.loss.detach()))
    targets = sum(batch.target_count for batch in batches)
    further = {name: torch.stack([part.sums[name] for part in losses]).sum() for name in method.sums}
    loss, correct = (
        torch.stack(values).sum() for values in zip(*((part.loss, part.correct) for part in losses), strict=True)
    )
    return StepSums(loss, correct, targets, further)


@torch.no_grad()
def validation_sums(
    method: Method[Any, Any], model: PeftModel, batches: Iterable[Batch], device: torch.device
) -> list[float]:
    """Return the sums of micro-batches that :func:`mean_score` divides: losses, correct targets, weights, targets."""
    model.eval()
    losses, corrects, weight_sum, targets = [], [], 0.0, 0
    for batch in batches:
        batch_loss = method.loss(model, batch, device)
        losses.append(batch_loss.loss)
        corrects.append(batch_loss.correct)
        weight_sum, targets = weight_sum + batch.weight_sum, targets + batch.target_count
    return [_sum(losses), _sum(corrects), weight_sum, targets]


def mean_score(sums: Sequence[float]) -> Score | None:
    """Return the score of the sums over all micro-batches; None without targets."""
    loss, correct, weight, targets = sums
    return Score(loss / weight, correct / targets, int(targets)) if targets else None


def _sum(scalars: Sequence[torch.Tensor]) -> float:
    return torch.stack(list(scalars)).sum().item() if scalars else 0.0

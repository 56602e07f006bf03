"""The language-model head and its loss over supervised positions only, without ever holding all logits.

The head is frozen, so its backward pass needs only the gradient of the hidden rows, which is known as soon as a chunk's
logits are: it is computed in the forward pass, and the logits are dropped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from shared.preflight.memory import chunk_rows


class _FrozenHeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        loss, correct = torch.zeros((), device=hidden.device), torch.zeros((), device=hidden.device)
        gradient = torch.empty_like(hidden) if context.needs_input_grad[0] else None
        for start in range(0, len(hidden), chunk_rows(len(weight))):
            rows = slice(start, start + chunk_rows(len(weight)))
            logits = linear(hidden[rows], weight, bias).float()
            chosen = targets[rows, None]
            correct += (logits.argmax(-1, keepdim=True) == chosen).sum()
            log_total = logits.logsumexp(-1, keepdim=True)
            loss += ((log_total - logits.gather(-1, chosen))[:, 0] * weights[rows]).sum()
            if gradient is not None:
                probabilities = logits.sub_(log_total).exp_()
                probabilities.scatter_add_(-1, chosen, torch.full_like(log_total, -1.0))
                gradient[rows] = probabilities.mul_(weights[rows, None]).to(weight.dtype) @ weight
        context.save_for_backward(gradient)
        context.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    @once_differentiable
    def backward(context: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = context.saved_tensors
        return gradient * outputs[0].to(gradient.dtype), None, None, None, None


class _FrozenHeadLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor
    ) -> torch.Tensor:
        log_probs = torch.empty(len(hidden), device=hidden.device)
        gradient = torch.empty_like(hidden) if context.needs_input_grad[0] else None
        for start in range(0, len(hidden), chunk_rows(len(weight))):
            rows = slice(start, start + chunk_rows(len(weight)))
            logits = linear(hidden[rows], weight, bias).float()
            chosen, log_total = targets[rows, None], logits.logsumexp(-1, keepdim=True)
            log_probs[rows] = (logits.gather(-1, chosen) - log_total)[:, 0]
            if gradient is not None:
                # The gradient of log p(target): one-hot minus softmax.
                negative = logits.sub_(log_total).exp_()
                negative.scatter_add_(-1, chosen, torch.full_like(log_total, -1.0))
                gradient[rows] = negative.neg_().to(weight.dtype) @ weight
        context.save_for_backward(gradient)
        return log_probs

    @staticmethod
    @once_differentiable
    def backward(context: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = context.saved_tensors
        # Each row's gradient is known except for a factor, which is applied in fp32: if rounded, it would scale a whole
        # answer wrongly.
        return (gradient * outputs[0][:, None]).to(gradient.dtype), None, None, None


def head_log_probs(head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each target in nats, fp32.

    Args:
        head: the output embedding; a frozen linear layer, or any module that turns hidden rows into logits.
        hidden: (targets, width), the rows that predict.
        targets: (targets,) token ids.
    """
    if type(head) is torch.nn.Linear and not head.weight.requires_grad:
        return _FrozenHeadLogProbs.apply(hidden, head.weight, head.bias, targets)  # type: ignore[no-untyped-call, no-any-return]
    rows = chunk_rows(head.weight.shape[0])  # type: ignore[index, arg-type]
    chunks = zip(hidden.split(rows), targets.split(rows), strict=True)
    outputs = [checkpoint(_learnt_log_probs, head, *chunk, use_reentrant=False) for chunk in chunks]
    return torch.cat(outputs) if outputs else hidden.new_zeros(0, dtype=torch.float32)


def _learnt_log_probs(head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -cross_entropy(head(hidden).float(), targets, reduction="none")


def head_loss(
    head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weighted sum of cross-entropies in nats, and the number of targets that the arg-max predicts.

    Args:
        head: the output embedding; a frozen linear layer, or any module that turns hidden rows into logits.
        hidden: (targets, width), the rows that predict.
        targets: (targets,) token ids.
        weights: (targets,) fp32.
    """
    if type(head) is torch.nn.Linear and not head.weight.requires_grad:
        loss, correct = _FrozenHeadLoss.apply(hidden, head.weight, head.bias, targets, weights)  # type: ignore[no-untyped-call]
        return loss, correct
    rows = chunk_rows(head.weight.shape[0])  # type: ignore[index, arg-type]
    chunks = zip(hidden.split(rows), targets.split(rows), weights.split(rows), strict=True)
    outputs = [checkpoint(_learnt_head_loss, head, *chunk, use_reentrant=False) for chunk in chunks]
    losses, corrects = zip(*outputs, strict=True)
    return torch.stack(losses).sum(), torch.stack(corrects).sum()


def _learnt_head_loss(
    head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute :func:`head_loss` for a head that is trained: its logits are recomputed in the backward pass."""
    logits = head(hidden).float()
    losses = cross_entropy(logits, targets, reduction="none")
    return (losses * weights).sum(), (logits.argmax(-1) == targets).sum()

"""Fused kernels that do not exist yet, as a counter of operations sees them: each reads and writes once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from peft import PeftModel
from torch import Tensor

from bench.training.step_counter import ELEMENTWISE, StepCounter
from worker.training.model import fused_functions
from worker.training.model.fused_functions import adapter_gradients, input_gradient, slim_gradients


@contextmanager
def paper_kernels(model: PeftModel, counter: StepCounter) -> Iterator[None]:
    """Compute norms, rotary embeddings and SwiGLU by one kernel each; the residual's sum stays one of its own."""
    family = sys.modules[type(model.get_base_model()).__module__]
    gated = partial(_gated, counter)
    with ExitStack() as patches:
        patches.enter_context(patch.object(family, "apply_rotary_pos_emb", partial(_rotate, counter)))
        patches.enter_context(patch.object(fused_functions, "gated", gated))
        patches.enter_context(patch.object(fused_functions, "_through_down", partial(_through_down, counter)))
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                patches.enter_context(patch.object(module, "forward", partial(_norm, counter, module.weight)))
        yield


def _norm(counter: StepCounter, weight: Tensor, x: Tensor) -> Tensor:
    output: Tensor = _Norm.apply(x, weight, counter)  # type: ignore[no-untyped-call]
    return output


def _rotate(counter: StepCounter, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *_: Any) -> tuple[Tensor, ...]:
    pair: tuple[Tensor, ...] = _Rotation.apply(query, key, cos, sin, counter)  # type: ignore[no-untyped-call]
    return pair


def _gated(counter: StepCounter, gate: Tensor, up: Tensor) -> Tensor:
    counter.kernel(ELEMENTWISE, gate.nbytes + up.nbytes + up.nbytes)
    return torch.empty_like(up)


def _through_down(
    counter: StepCounter, grad: Tensor, gate: Tensor, up: Tensor, thin: Tensor, frozen: Any, adapters: Any
) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """Do the work of `fused_functions._through_down` with one kernel for the product and one for its gradients."""
    slim = slim_gradients((grad,), thin, adapters)
    inner = _gated(counter, gate, up)
    learnt = adapter_gradients((grad,), inner, thin, slim, adapters)
    d_inner = input_gradient((grad,), inner, slim, frozen, adapters)
    # Both gradients replace what is needed no longer.
    counter.kernel(ELEMENTWISE, 5 * gate.nbytes)
    return inner, d_inner, learnt


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counter: StepCounter) -> Tensor:
        ctx.counter = counter
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        counter.kernel(ELEMENTWISE, 2 * x.nbytes)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.counter.kernel(ELEMENTWISE, 3 * gradient.nbytes)
        return torch.empty_like(ctx.saved_tensors[0]), None, None


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, counter: StepCounter
    ) -> tuple[Tensor, Tensor]:
        ctx.counter = counter
        ctx.save_for_backward(cos, sin)
        counter.kernel(ELEMENTWISE, 2 * (query.nbytes + key.nbytes))
        return torch.empty_like(query), torch.empty_like(key)

    @staticmethod
    def backward(ctx: Any, query: Tensor, key: Tensor) -> tuple[Tensor | None, ...]:
        ctx.counter.kernel(ELEMENTWISE, 2 * (query.nbytes + key.nbytes))
        return torch.empty_like(query), torch.empty_like(key), None, None, None

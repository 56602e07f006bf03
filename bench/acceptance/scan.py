"""Qwen3.5's linear attention, one layer's gated delta rule: ``python -m bench.acceptance.scan VARIANT DEVICE TOKENS…``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

from bench.acceptance.results import Goal, PartResult, run_part
from bench.acceptance.timing import seconds_of
from bench.training.counted_model import QWEN3_5, TINY_QWEN3_5
from worker.training.model.delta_rule import gated_delta_rule
from worker.training.model.kernels.delta_rule.functions import DeltaRule, HeadSizes
from worker.training.model.kernels.flash_delta_rule import flash_scan, installed_kernel

LINEAR = 1.1
"""Largest allowed growth of the time, relative to the growth of the row's length."""
SAME = {"own": 1e-3, "triton": 0.02, "fla": 0.02}
"""Largest relative distance from the reference on the shortest row, in fp32 and in bf16."""
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def inputs_of(tokens: int, device: str, dtype: torch.dtype) -> Inputs:
    """Return query, key, value, decay and beta of one row, for a layer of the 4B model; on a CPU, of a tiny one."""
    config: dict[str, Any] = TINY_QWEN3_5 if device == "cpu" else QWEN3_5
    heads, size = config["linear_num_value_heads"], config["linear_value_head_dim"]
    generator = torch.Generator().manual_seed(tokens)
    query, key, value = (torch.randn(1, tokens, heads, size, generator=generator) for _ in range(3))
    decay, beta = -torch.rand(1, tokens, heads, generator=generator), torch.rand(1, tokens, heads, generator=generator)
    query, key, value = (tensor.to(device, dtype).requires_grad_() for tensor in (query, key, value))
    decay, beta = (tensor.to(device).requires_grad_() for tensor in (decay, beta))
    return query, key, value, decay, beta


def reference(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Compute it as transformers does without flash-linear-attention, even if that is installed."""
    output: Tensor = unwrap(torch_chunk_gated_delta_rule)(
        query, key, value, g=decay, beta=beta, use_qk_l2norm_in_kernel=True
    )[0]
    return output


def flash(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Compute the scan with flash-linear-attention or, on a CPU, which it does not support, with the trainer's own."""
    if not query.is_cuda:
        return gated_delta_rule(query, key, value, decay, beta)
    kernel = installed_kernel()
    if kernel is None:
        sys.exit("flash-linear-attention is not installed")
    return flash_scan(kernel, query, key, value, decay, beta, None)


def by_triton(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Compute the scan with the trainer's kernels or, on a CPU, where they cannot run, with its own in torch."""
    if not query.is_cuda:
        return gated_delta_rule(query, key, value, decay, beta)
    heads, size = query.shape[2:]
    mixed = torch.cat([tensor.flatten(2) for tensor in (query, key, value)], -1)
    output: Tensor = DeltaRule.apply(  # type: ignore[no-untyped-call]
        mixed, decay, beta, None, HeadSizes(heads, size, heads, value.shape[3])
    )
    return output


SCANS: dict[str, Callable[..., Tensor]] = {
    "reference": reference,
    "own": gated_delta_rule,
    "triton": by_triton,
    "fla": flash,
}


def both_ways(scan: Callable[..., Tensor], inputs: Inputs) -> list[Tensor]:
    """Return the output and the gradients."""
    output = scan(*inputs)
    seed = torch.linspace(-1, 1, output.numel(), device=output.device).view_as(output).to(output.dtype)
    return [output.detach(), *torch.autograd.grad(output, inputs, seed)]


def measure(variant: str, device: str, *tokens: str) -> PartResult:
    """Measure a variant forward and backward on rows of these lengths, and compare it with the reference."""
    scan, dtype = SCANS[variant], torch.float32 if variant == "own" else torch.bfloat16
    lengths = [int(item) for item in tokens]
    seconds = {}
    for length in lengths:
        inputs = inputs_of(length, device, torch.float32 if device == "cpu" else torch.bfloat16)
        seconds[length] = seconds_of(partial(both_ways, scan, inputs), device)
    figures: dict[str, float | str] = {f"{length} tokens, ms": item * 1e3 for length, item in seconds.items()}
    if variant == "reference":
        return PartResult(figures)
    same = inputs_of(lengths[0], device, dtype)
    exact = both_ways(reference, inputs_of(lengths[0], device, torch.float32))
    distance = max(
        float((item.float() - other).norm() / other.norm())
        for item, other in zip(both_ways(scan, same), exact, strict=True)
    )
    goals = [Goal(f"A5-{variant}-values", distance, SAME[variant])]
    if variant == "own":
        growth = seconds[lengths[-1]] / seconds[lengths[0]] / (lengths[-1] / lengths[0])
        goals.append(Goal("A5-growth", growth, LINEAR, facts={"tokens": lengths}))
    return PartResult(figures | {"distance": distance}, goals)


PARTS = {variant: partial(measure, variant) for variant in SCANS}

if __name__ == "__main__":
    run_part(PARTS)

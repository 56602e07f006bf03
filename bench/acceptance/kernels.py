"""Time of Triton's kernels against torch's formulas, forward and backward: ``python -m bench.acceptance.kernels KERNEL DEVICE SIZE``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.acceptance.kernel_functions import IN_PLACE, KernelFunctions
from bench.acceptance.results import Goal, PartResult, run_part
from bench.acceptance.timing import kernel_seconds_of
from bench.training.shapes import SHAPES

TOKENS = {"cpu": 64, "cuda": 16_384}
"""On a GPU, enough that no tensor stays in its cache."""
EPS = 1e-6
FASTER = 2.0
"""Minimum speed relative to torch; in the model all kernels together are four times as fast."""
Inputs = tuple[Any, ...]


def measure(function: str, inputs_of: Callable[[str, str], Inputs], device: str, size: str) -> PartResult:
    """Time both implementations of one function, on the shapes of a model."""
    inputs = inputs_of(device, size)
    ours = KernelFunctions.of(device)
    kernel, torchs = (
        kernel_seconds_of(partial(_both_ways, item, inputs), device)
        for item in (ours.apply(function), IN_PLACE[function])
    )
    goal = Goal("A6", torchs / kernel, FASTER, at_most=False, facts={"function": function, "by": ours.computed_by})
    # Forward reads the inputs and writes as much; backward reads and writes both once more.
    moved = 5 * sum(item.nbytes for item in inputs if isinstance(item, Tensor) and item.requires_grad)
    figures = {f"{ours.computed_by}, ms": kernel * 1e3, "torch's formulas, ms": torchs * 1e3}
    return PartResult(figures | {"about GB/s": moved / kernel / 1e9}, [goal])


def _both_ways(function: Callable[..., Any], inputs: Inputs) -> None:
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    leaves = [tensor for tensor in inputs if isinstance(tensor, Tensor) and tensor.requires_grad]
    torch.autograd.grad(outputs, leaves, [torch.ones_like(tensor) for tensor in outputs])


def _leaf(device: str, *shape: int) -> Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)


def of_residual_norms(device: str, size: str) -> Inputs:
    """Return the inputs of a block's norm with the sum before it; its weight is frozen."""
    hidden, tokens = SHAPES[size].hidden, TOKENS[device]
    x, delta = (_leaf(device, 1, tokens, hidden) for _ in range(2))
    return x, delta, torch.ones(hidden, device=device, dtype=torch.bfloat16), EPS, False


def of_head_norms(device: str, size: str) -> Inputs:
    """Return the inputs of the norm of queries."""
    shape = SHAPES[size]
    x = _leaf(device, 1, TOKENS[device], shape.heads, shape.head_dim)
    return x, None, torch.ones(shape.head_dim, device=device, dtype=torch.bfloat16), EPS, False


def of_rotations(device: str, size: str) -> Inputs:
    """Return queries, keys and angles."""
    shape, tokens = SHAPES[size], TOKENS[device]
    query, key = (_leaf(device, 1, heads, tokens, shape.head_dim) for heads in (shape.heads, shape.kv_heads))
    angles = torch.rand(1, tokens, shape.head_dim, device=device)
    return query, key, angles.cos().bfloat16(), angles.sin().bfloat16()


def of_gates(device: str, size: str) -> Inputs:
    """Return gate and up of an MLP."""
    gate, up = (_leaf(device, 1, TOKENS[device], SHAPES[size].intermediate) for _ in range(2))
    return gate, up


PARTS = {
    "norm and sum": partial(measure, "NormedSum", of_residual_norms),
    "norm of queries": partial(measure, "NormedSum", of_head_norms),
    "rotary embeddings": partial(measure, "Rotation", of_rotations),
    "SwiGLU": partial(measure, "Gated", of_gates),
}

if __name__ == "__main__":
    run_part(PARTS)

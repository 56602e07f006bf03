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
from bench.training.counted_model import QWEN3_5, TINY_QWEN3_5
from bench.training.shapes import SHAPES
from worker.training.model.kernels.delta_rule.functions import HeadSizes

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
    # Forward reads the inputs and writes as much; backward reads and writes both once more. The delta rule moves more.
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


def of_convolutions(device: str, _size: str) -> Inputs:
    """Return queries, keys and values of Qwen3.5-4B before their convolution, whatever the size, and its kernel."""
    x = _leaf(device, 1, TOKENS[device], _columns(head_sizes(device)))
    return x, torch.randn(x.shape[-1], 4, device=device, dtype=torch.bfloat16), None


def of_delta_rules(device: str, _size: str) -> Inputs:
    """Return queries, keys and values of Qwen3.5-4B, whatever the size, with their decays and rates."""
    sizes, tokens = head_sizes(device), TOKENS[device]
    rate = torch.rand(1, tokens, sizes.value_heads, device=device)
    decay = (-rate).requires_grad_()
    return _leaf(device, 1, tokens, _columns(sizes)), decay, rate.bfloat16().requires_grad_(), None, sizes


def head_sizes(device: str) -> HeadSizes:
    """Return the heads of a layer of linear attention; on a CPU, of a tiny model."""
    config: dict[str, Any] = TINY_QWEN3_5 if device == "cpu" else QWEN3_5
    return HeadSizes(
        config["linear_num_key_heads"],
        config["linear_key_head_dim"],
        config["linear_num_value_heads"],
        config["linear_value_head_dim"],
    )


def _columns(sizes: HeadSizes) -> int:
    return 2 * sizes.key_heads * sizes.key_size + sizes.value_heads * sizes.value_size


PARTS = {
    "norm and sum": partial(measure, "NormedSum", of_residual_norms),
    "norm of queries": partial(measure, "NormedSum", of_head_norms),
    "rotary embeddings": partial(measure, "Rotation", of_rotations),
    "SwiGLU": partial(measure, "Gated", of_gates),
    "convolution": partial(measure, "Convolved", of_convolutions),
    "delta rule": partial(measure, "DeltaRule", of_delta_rules),
}

if __name__ == "__main__":
    run_part(PARTS)

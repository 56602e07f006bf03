"""The kernels as operators of torch, ``torch.ops.mens``: so their shapes are also known on tensors without memory, with
which plans and benches count bytes. Triton is imported when the first of them runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("mens", "DEF")


def norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, *, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``x + delta`` (empty without a delta), its norm (`reference.py:rms_norm`), and each row's factor in fp32."""
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.mens.norm(x, delta, weight, eps, centred)
    return result


def norm_gradient(
    d_normed: Tensor, d_total: Tensor | None, x: Tensor, weight: Tensor, scale: Tensor, *, centred: bool, learns: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of x (the sum) and of the weight if it is trained.

    Args:
        d_total: the gradient that flows back to the sum from elsewhere.
        x, scale: the sum and each row's factor, as `norm` received or returned them.
    """
    dx, d_weight = torch.ops.mens.norm_gradient(d_normed, d_total, x, weight, scale, centred, learns)
    return dx, d_weight if learns else None


def turn(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> tuple[Tensor, Tensor]:
    """Return queries and keys rotated by the angles (`reference.py:rotate`), or by their negatives, which is the
    gradient.
    """
    result: tuple[Tensor, Tensor] = torch.ops.mens.turn(query, key, cos, sin, back)
    return result


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return ``silu(gate) ⊙ up``."""
    result: Tensor = torch.ops.mens.gated(gate, up)
    return result


def gated_gradients(d_inner: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the product once more, and the gradients of gate and up; the latter takes the memory of ``d_inner``."""
    inner, d_gate = torch.ops.mens.gated_gradients(d_inner, gate, up)
    return inner, d_gate, d_inner


def convolved(x: Tensor, weight: Tensor, first: Tensor | None) -> Tensor:
    """Return SiLU of the causal convolution of each channel with its own kernel, within documents.

    Args:
        x: (rows, tokens, channels).
        weight: (channels, kernel size); its last column is for the position itself.
        first: (tokens,), int32, the position at which each position's document starts; None: each row is a document.
    """
    result: Tensor = torch.ops.mens.convolved(x, weight, first)
    return result


def convolved_gradient(gradient: Tensor, x: Tensor, weight: Tensor, first: Tensor | None) -> Tensor:
    """Return the gradient of x; the convolution is computed again."""
    result: Tensor = torch.ops.mens.convolved_gradient(gradient, x, weight, first)
    return result


def _norm_shapes(x: Tensor, delta: Tensor | None, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    normed = x.new_empty(x.shape)
    total = x.new_empty(0) if delta is None else x.new_empty(x.shape)
    return total, normed, x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32)


def _norm_gradient_shapes(
    _gradient: Tensor, _total: Tensor | None, x: Tensor, weight: Tensor, *others: Any
) -> tuple[Tensor, Tensor]:
    learns = others[-1]
    return x.new_empty(x.shape), weight.new_empty(weight.shape if learns else 0)


def _turn_shapes(query: Tensor, key: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key)


def _gated_shapes(_gate: Tensor, up: Tensor) -> Tensor:
    return up.new_empty(up.shape)


def _gated_gradients_shapes(_gradient: Tensor, _gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return up.new_empty(up.shape), up.new_empty(up.shape)


def _convolved_shapes(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _convolved_gradient_shapes(_gradient: Tensor, x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def define(name: str, signature: str, module: str, shapes: Any) -> None:
    """Add an operator.

    Args:
        module: the module of this package whose function of the same name launches the kernel.
        shapes: function that returns outputs without values.
    """

    def launch(*arguments: Any) -> Any:
        return getattr(import_module(f"worker.training.model.kernels.{module}"), name)(*arguments)

    LIBRARY.define(f"{name}{signature}")
    # On a CPU only Triton's interpreter runs them.
    for key in ("CUDA", "CPU"):
        LIBRARY.impl(name, launch, key)
    LIBRARY.impl(name, shapes, "Meta")


define(
    "norm",
    "(Tensor x, Tensor? delta, Tensor weight, float eps, bool centred) -> (Tensor, Tensor, Tensor)",
    "norm_kernels",
    _norm_shapes,
)
define(
    "norm_gradient",
    "(Tensor d_normed, Tensor? d_total, Tensor x, Tensor weight, Tensor scale, bool centred, bool learns) -> "
    "(Tensor, Tensor)",
    "norm_kernels",
    _norm_gradient_shapes,
)
define(
    "turn",
    "(Tensor query, Tensor key, Tensor cos, Tensor sin, bool back) -> (Tensor, Tensor)",
    "rotary_kernels",
    _turn_shapes,
)
define("gated", "(Tensor gate, Tensor up) -> Tensor", "swiglu_kernels", _gated_shapes)
define(
    "gated_gradients",
    "(Tensor(a!) d_inner, Tensor gate, Tensor up) -> (Tensor, Tensor)",
    "swiglu_kernels",
    _gated_gradients_shapes,
)
define(
    "convolved",
    "(Tensor x, Tensor weight, Tensor? first) -> Tensor",
    "convolution_kernels",
    _convolved_shapes,
)
define(
    "convolved_gradient",
    "(Tensor gradient, Tensor x, Tensor weight, Tensor? first) -> Tensor",
    "convolution_kernels",
    _convolved_gradient_shapes,
)

"""The kernels of the delta rule as operators of torch: the shapes of their outputs, and the FLOPs of their products, which
benches count. `functions.py` calls them; Triton is imported when the first of them runs.

Arguments have the same names everywhere:

- query, key: (rows, tokens, key heads, key size); value: (rows, tokens, heads, value size); all of them parts of one
  contiguous tensor, or contiguous.
- decay: logarithms, fp32 (rows, tokens, heads); beta: (rows, tokens, heads).
- first: (tokens,), int32, the position at which each position's document starts; None: each row is a document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from worker.training.model.delta_rule import CHUNK
from worker.training.model.kernels.operators import define

KEY_COLUMNS = 64
"""Columns of keys whose gradients one program computes."""
INVERSES = 4
"""Products of whole chunks with which a triangular system is inverted."""
Shape = tuple[int, ...]


def _inverse_shapes(decay: Tensor, _beta: Tensor, key: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return decay.new_empty(decay.shape), key.new_empty(*decay.shape, CHUNK)


def _solved_shapes(key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return key.new_empty(value.shape), key.new_empty(*value.shape[:3], key.shape[3])


def _states_shapes(key: Tensor, fresh: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return _states(key, fresh), fresh.new_empty(fresh.shape)


def _outputs_shapes(*arguments: Any) -> Tensor:
    written: Tensor = arguments[5]
    return written.new_empty(written.shape)


def _direct_shapes(*arguments: Any) -> Tensor:
    gradient: Tensor = arguments[4]
    return gradient.new_empty(gradient.shape)


def _state_gradients_shapes(_query: Tensor, key: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    direct: Tensor = others[4]
    return _states(key, direct), direct.new_empty(direct.shape)


def _output_gradients_shapes(
    _query: Tensor, key: Tensor, total: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gradient: Tensor = others[3]
    keys = key.shape[3]
    d_query, d_key, d_old = (key.new_empty(*gradient.shape[:3], keys) for _ in range(3))
    return d_query, d_key, d_old, total.new_empty(-(-keys // KEY_COLUMNS), *total.shape)


def _system_gradients_shapes(
    key: Tensor, _value: Tensor, beta: Tensor, total: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    d_key = key.new_empty(*total.shape, key.shape[3])
    return d_key, total.new_empty(total.shape), beta.new_empty(beta.shape)


def _nothing(*_: object) -> None:
    """Return nothing: the result is stored in an argument."""


def _states(key: Tensor, values: Tensor) -> Tensor:
    rows, tokens, heads, size = values.shape
    return key.new_empty(rows, heads, -(-tokens // CHUNK), key.shape[3], size)


def _define(name: str, signature: str, module: str, shapes: Any, products: Callable[..., int]) -> None:
    define(name, signature, f"delta_rule.{module}", shapes)
    register_flop_formula(getattr(torch.ops.mens, name))(products)


def _chunks(shape: Shape) -> int:
    """Return the number of chunks of all rows and heads of this shape."""
    rows, tokens, heads = shape[:3]
    return rows * heads * -(-tokens // CHUNK)


def _products(shape: Shape, *columns: int) -> int:
    """Return the FLOPs of products of a chunk's positions with these inner times outer columns, in every chunk."""
    return _chunks(shape) * 2 * CHUNK * sum(columns)


def _inverse_products(decay: Shape, _beta: Shape, key: Shape, *_: Any, **__: Any) -> int:
    return _products(decay, CHUNK * key[3], INVERSES * CHUNK * CHUNK)


def _solved_products(key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return _products(value, CHUNK * key[3], CHUNK * value[3])


def _states_products(key: Shape, fresh: Shape, *_: Any, **__: Any) -> int:
    return _products(fresh, 2 * key[3] * fresh[3])


def _outputs_products(_query: Shape, key: Shape, *others: Any, **__: Any) -> int:
    written = others[3]
    return _products(written, CHUNK * key[3], key[3] * written[3], CHUNK * written[3])


def _direct_products(_query: Shape, key: Shape, *others: Any, **__: Any) -> int:
    gradient = others[2]
    return _products(gradient, CHUNK * key[3], CHUNK * gradient[3])


def _state_gradients_products(_query: Shape, key: Shape, *others: Any, **__: Any) -> int:
    direct = others[4]
    return _products(direct, 3 * key[3] * direct[3])


def _output_gradients_products(_query: Shape, key: Shape, *others: Any, **__: Any) -> int:
    gradient, keys = others[4], key[3]
    # Every block of the keys' columns has its own scores of positions.
    scores = -(-keys // KEY_COLUMNS) * CHUNK * gradient[3]
    return _products(gradient, 3 * keys * gradient[3], scores, 3 * CHUNK * keys)


def _system_gradients_products(key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return _products(value, 4 * CHUNK * key[3], 2 * CHUNK * value[3], 2 * CHUNK * CHUNK)


def _no_products(*_: Any, **__: Any) -> int:
    return 0


# Its first argument is fp32, like most of its products: by that argument the counter of a step chooses their rate.
_define(
    "delta_inverse",
    "(Tensor decay, Tensor beta, Tensor key, Tensor? first) -> (Tensor, Tensor)",
    "system_kernels",
    _inverse_shapes,
    _inverse_products,
)
_define(
    "delta_solved",
    "(Tensor key, Tensor value, Tensor beta, Tensor total, Tensor? first, Tensor inverse) -> (Tensor, Tensor)",
    "system_kernels",
    _solved_shapes,
    _solved_products,
)
_define(
    "delta_states",
    "(Tensor key, Tensor fresh, Tensor old, Tensor total, Tensor? first) -> (Tensor, Tensor)",
    "state_kernels",
    _states_shapes,
    _states_products,
)
_define(
    "delta_outputs",
    "(Tensor query, Tensor key, Tensor total, Tensor? first, Tensor states, Tensor written) -> Tensor",
    "output_kernels",
    _outputs_shapes,
    _outputs_products,
)
_define(
    "delta_direct_gradient",
    "(Tensor query, Tensor key, Tensor total, Tensor? first, Tensor gradient) -> Tensor",
    "output_kernels",
    _direct_shapes,
    _direct_products,
)
_define(
    "delta_state_gradients",
    "(Tensor query, Tensor key, Tensor old, Tensor total, Tensor? first, Tensor gradient, Tensor direct) -> "
    "(Tensor, Tensor)",
    "state_kernels",
    _state_gradients_shapes,
    _state_gradients_products,
)
_define(
    "delta_output_gradients",
    "(Tensor query, Tensor key, Tensor total, Tensor? first, Tensor states, Tensor written, Tensor gradient, "
    "Tensor d_states, Tensor d_written) -> (Tensor, Tensor, Tensor, Tensor)",
    "output_kernels",
    _output_gradients_shapes,
    _output_gradients_products,
)
_define(
    "delta_system_gradients",
    "(Tensor key, Tensor value, Tensor beta, Tensor total, Tensor? first, Tensor inverse, Tensor d_written, "
    "Tensor d_old, Tensor d_read_key, Tensor d_totals, Tensor(a!) d_value) -> (Tensor, Tensor, Tensor)",
    "system_kernels",
    _system_gradients_shapes,
    _system_gradients_products,
)
_define(
    "delta_head_gradient",
    "(Tensor x, Tensor d_normal, Tensor(a!) d_x) -> ()",
    "head_kernels",
    _nothing,
    _no_products,
)

inverse, solved, states, outputs = (
    getattr(torch.ops.mens, f"delta_{name}") for name in ("inverse", "solved", "states", "outputs")
)
direct_gradient, state_gradients, output_gradients, system_gradients, head_gradient = (
    getattr(torch.ops.mens, f"delta_{name}")
    for name in ("direct_gradient", "state_gradients", "output_gradients", "system_gradients", "head_gradient")
)

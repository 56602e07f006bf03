"""The triangular system of a chunk: its inverse, what is solved with it, and their gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker.training.model.delta_rule import CHUNK, EPSILON
from worker.training.model.kernels.delta_rule.tiles import (
    chunks_of,
    columns,
    factor,
    factor_in_blocks,
    masked_exp,
    precision_of,
    rows_of,
    starts_of,
    store_tile,
    tile,
    visible,
)

BLOCK = 16
"""Rows of the blocks on the diagonal, which are inverted row by row. The powers of the rest are then few, so that their
rounding errors stay small even if all keys are alike.
"""
COLUMNS = 64


@triton.jit
def _unit_inverse(system, PRECISION: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Return the inverse of 1 + system, which is strictly lower triangular, (CHUNK, CHUNK)."""
    block, step = tl.arange(0, CHUNK // BLOCK), tl.arange(0, BLOCK)
    own = block[:, None, None, None] == block[None, None, :, None]
    diagonal = tl.sum(tl.where(own, tl.reshape(system, (CHUNK // BLOCK, BLOCK, CHUNK // BLOCK, BLOCK)), 0.0), 2)
    inverse = tl.where(step[None, :, None] == step[None, None, :], 1.0, 0.0) + tl.zeros_like(diagonal)
    for number in range(1, BLOCK):
        at = (step == number)[None, :, None]
        row = tl.sum(tl.where(at, diagonal, 0.0), 1)
        inverse -= tl.where(at, tl.sum(row[:, :, None] * inverse, 1)[:, None, :], 0.0)
    whole = tl.reshape(tl.where(own, inverse[:, :, None, :], 0.0), (CHUNK, CHUNK))
    place = tl.arange(0, CHUNK) // BLOCK
    below = tl.where(place[:, None] > place[None, :], system, 0.0)
    # (1 + n)⁻¹ = (1 - n)(1 + n²) for the product n of the blocks' inverses and the rest, whose fourth power is zero.
    product = tl.dot(whole, below, input_precision=PRECISION)
    square = tl.dot(product, product, input_precision=PRECISION)
    right = whole + tl.dot(square, whole, input_precision=PRECISION)
    return right - tl.dot(product, right, input_precision=PRECISION)


@triton.jit
def _inverse(
    decay_at,
    beta_at,
    key_at,
    first_at,
    total_at,
    inverse_at,
    tokens,
    heads,
    keys,
    key_stride,
    DOCUMENTS: tl.constexpr,
    REPEATS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Store each position's sum of logarithms since the start of the chunk or of its document, and the inverse of
    ``1 + beta ⊙ (k·kᵀ) ⊙ decays between the positions``.
    """
    chunk, row, head = tl.program_id(0), tl.program_id(1) // heads, tl.program_id(1) % heads
    place, token, inside = rows_of(chunk, row, tokens, CHUNK)
    first = starts_of(first_at, place, inside, DOCUMENTS)
    seen = visible(first, inside, CHUNK)
    log = tl.load(decay_at + token * heads + head, mask=inside, other=0.0).to(tl.float32)
    # A sum over the document's own positions, so that an earlier document's decays do not affect its rounding.
    total = tl.sum(tl.where(seen, log[None, :], 0.0), 1)
    tl.store(total_at + token * heads + head, total, mask=inside)
    beta = tl.load(beta_at + token * heads + head, mask=inside, other=0.0).to(tl.float32)
    key = tile(key_at, token, inside, key_stride, head // REPEATS * keys, keys, KEYS)
    scale = factor(key, EPSILON)
    similar = tl.dot(key, tl.trans(key), input_precision=PRECISION) * scale[:, None] * scale[None, :]
    earlier = seen & (place[:, None] > place[None, :])
    system = similar * beta[:, None] * masked_exp(total[:, None] - total[None, :], earlier)
    inverse = _unit_inverse(system, PRECISION, CHUNK, BLOCK)
    store_tile(inverse_at, inverse, token, inside, heads * CHUNK, head * CHUNK, CHUNK, CHUNK)


@triton.jit
def _solved(
    key_at,
    value_at,
    beta_at,
    total_at,
    first_at,
    inverse_at,
    fresh_at,
    old_at,
    tokens,
    heads,
    keys,
    values,
    key_stride,
    value_stride,
    DOCUMENTS: tl.constexpr,
    REPEATS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Store ``fresh = inverse · (beta ⊙ v)`` and ``old = inverse · (beta ⊙ decays since the chunk's start ⊙ k)``."""
    chunk, row, head = tl.program_id(0), tl.program_id(1) // heads, tl.program_id(1) % heads
    place, token, inside = rows_of(chunk, row, tokens, CHUNK)
    first = starts_of(first_at, place, inside, DOCUMENTS)
    beta = tl.load(beta_at + token * heads + head, mask=inside, other=0.0).to(tl.float32)
    total = tl.load(total_at + token * heads + head, mask=inside, other=0.0)
    inverse = tile(inverse_at, token, inside, heads * CHUNK, head * CHUNK, CHUNK, CHUNK).to(tl.float32)
    key = tile(key_at, token, inside, key_stride, head // REPEATS * keys, keys, KEYS)
    reading = beta * factor(key, EPSILON) * masked_exp(total, inside & (first < chunk * CHUNK))
    old = tl.dot((inverse * reading[None, :]).to(key.dtype), key, input_precision=PRECISION)
    store_tile(old_at, old, token, inside, heads * keys, head * keys, keys, KEYS)
    value = tile(value_at, token, inside, value_stride, head * values, values, VALUES)
    fresh = tl.dot((inverse * beta[None, :]).to(value.dtype), value, input_precision=PRECISION)
    store_tile(fresh_at, fresh, token, inside, heads * values, head * values, values, VALUES)


@triton.jit
def _system_gradients(
    key_at,
    value_at,
    beta_at,
    total_at,
    first_at,
    inverse_at,
    d_written_at,
    d_old_at,
    d_read_key_at,
    d_totals_at,
    d_key_at,
    d_value_at,
    d_decay_at,
    d_beta_at,
    tokens,
    heads,
    keys,
    values,
    key_stride,
    value_stride,
    d_value_stride,
    blocks,
    DOCUMENTS: tl.constexpr,
    REPEATS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Store the gradients of normalised keys, of values, of decays and of beta.

    The inverse's gradient is ``d_written · (beta ⊙ v)ᵀ + d_old · (beta ⊙ decays since the chunk's start ⊙ k)ᵀ``, and the
    system's is ``-inverseᵀ · d_inverse · inverseᵀ``.
    """
    chunk, row, head = tl.program_id(0), tl.program_id(1) // heads, tl.program_id(1) % heads
    place, token, inside = rows_of(chunk, row, tokens, CHUNK)
    first = starts_of(first_at, place, inside, DOCUMENTS)
    beta = tl.load(beta_at + token * heads + head, mask=inside, other=0.0).to(tl.float32)
    total = tl.load(total_at + token * heads + head, mask=inside, other=0.0)
    reading = masked_exp(total, inside & (first < chunk * CHUNK))
    inverse = tl.trans(tile(inverse_at, token, inside, heads * CHUNK, head * CHUNK, CHUNK, CHUNK))
    own = head // REPEATS * keys
    scale = factor_in_blocks(key_at, token, inside, key_stride, own, keys, EPSILON, KEYS)
    similar, d_inverse = tl.zeros([CHUNK, CHUNK], tl.float32), tl.zeros([CHUNK, CHUNK], tl.float32)
    for start in range(0, keys, KEYS):
        key = tile(key_at, token, inside, key_stride, own + start, keys - start, KEYS)
        d_old = tile(d_old_at, token, inside, heads * keys, head * keys + start, keys - start, KEYS)
        similar += tl.dot(key, tl.trans(key), input_precision=PRECISION)
        d_inverse += tl.dot(d_old, tl.trans(key), input_precision=PRECISION)
    d_inverse *= (scale * reading)[None, :]
    d_beta = total * 0.0
    for start in range(0, values, VALUES):
        at, left = head * values + start, values - start
        d_written = tile(d_written_at, token, inside, heads * values, at, left, VALUES)
        value = tile(value_at, token, inside, value_stride, at, left, VALUES)
        d_inverse += tl.dot(d_written, tl.trans(value), input_precision=PRECISION)
        d_fresh = tl.dot(inverse, d_written, input_precision=PRECISION)
        d_beta += tl.sum(d_fresh * value.to(tl.float32), 1)
        store_tile(d_value_at, d_fresh * beta[:, None], token, inside, d_value_stride, at, left, VALUES)
    d_inverse = (d_inverse * beta[None, :]).to(inverse.dtype)
    d_inverse = tl.dot(inverse, d_inverse, input_precision=PRECISION).to(inverse.dtype)
    d_system = -tl.dot(d_inverse, inverse, input_precision=PRECISION)
    seen = visible(first, inside, CHUNK)
    d_system *= masked_exp(total[:, None] - total[None, :], seen & (place[:, None] > place[None, :]))
    similar *= scale[:, None] * scale[None, :]
    d_beta += tl.sum(d_system * similar, 1)
    d_similar = d_system * beta[:, None]
    pairs = d_similar * similar
    d_total = tl.sum(pairs, 1) - tl.sum(pairs, 0)
    both = ((d_similar + tl.trans(d_similar)) * scale[None, :]).to(inverse.dtype)
    by_read = total * 0.0
    for start in range(0, keys, KEYS):
        at, left = head * keys + start, keys - start
        key = tile(key_at, token, inside, key_stride, own + start, left, KEYS)
        d_old = tile(d_old_at, token, inside, heads * keys, at, left, KEYS)
        d_read = tl.dot(inverse, d_old, input_precision=PRECISION)
        by_read += tl.sum(d_read * key.to(tl.float32), 1)
        d_key = d_read * (beta * reading)[:, None] + tl.dot(both, key, input_precision=PRECISION)
        d_key += tile(d_read_key_at, token, inside, heads * keys, at, left, KEYS).to(tl.float32)
        store_tile(d_key_at, d_key, token, inside, heads * keys, at, left, KEYS)
    by_read *= scale * reading
    every = (tl.num_programs(1) // heads).to(tl.int64) * tokens
    for block in range(blocks):
        d_total += tl.load(d_totals_at + (block * every + token) * heads + head, mask=inside, other=0.0)
    # Each logarithm is part of its document's later sums.
    later = tl.sum(tl.where(seen, (d_total + by_read * beta)[:, None], 0.0), 0)
    tl.store(d_decay_at + token * heads + head, later, mask=inside)
    tl.store(d_beta_at + token * heads + head, (d_beta + by_read).to(d_beta_at.dtype.element_ty), mask=inside)


def delta_inverse(decay: Tensor, beta: Tensor, key: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sums of logarithms, fp32 (rows, tokens, heads), and the inverses, (rows, tokens, heads, CHUNK)."""
    rows, tokens, heads = decay.shape
    total = torch.empty_like(decay)
    inverse = key.new_empty(rows, tokens, heads, CHUNK)
    with torch.cuda.device_of(key):
        _inverse[(chunks_of(tokens), rows * heads)](
            decay,
            beta,
            key,
            first,
            total,
            inverse,
            tokens,
            heads,
            key.shape[3],
            key.stride(1),
            DOCUMENTS=first is not None,
            REPEATS=heads // key.shape[2],
            EPSILON=EPSILON,
            PRECISION=precision_of(key),
            CHUNK=CHUNK,
            BLOCK=BLOCK,
            KEYS=columns(key.shape[3]),
            num_warps=8,
        )
    return total, inverse


def delta_solved(
    key: Tensor, value: Tensor, beta: Tensor, total: Tensor, first: Tensor | None, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what each position would write into an empty state, and the key by which it reads what it replaces."""
    rows, tokens, heads, values = value.shape
    keys = key.shape[3]
    fresh, old = key.new_empty(rows, tokens, heads, values), key.new_empty(rows, tokens, heads, keys)
    with torch.cuda.device_of(key):
        _solved[(chunks_of(tokens), rows * heads)](
            key,
            value,
            beta,
            total,
            first,
            inverse,
            fresh,
            old,
            tokens,
            heads,
            keys,
            values,
            key.stride(1),
            value.stride(1),
            DOCUMENTS=first is not None,
            REPEATS=heads // key.shape[2],
            EPSILON=EPSILON,
            PRECISION=precision_of(key),
            CHUNK=CHUNK,
            KEYS=columns(keys),
            VALUES=columns(values),
            num_warps=4,
        )
    return fresh, old


def delta_system_gradients(
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    total: Tensor,
    first: Tensor | None,
    inverse: Tensor,
    d_written: Tensor,
    d_old: Tensor,
    d_read_key: Tensor,
    d_totals: Tensor,
    d_value: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Store the gradient of values; return those of normalised keys, (rows, tokens, heads, keys), of logarithms and of
    beta.
    """
    rows, tokens, heads, values = value.shape
    keys = key.shape[3]
    d_key, d_decay, d_beta = torch.empty_like(d_read_key), torch.empty_like(total), torch.empty_like(beta)
    with torch.cuda.device_of(key):
        _system_gradients[(chunks_of(tokens), rows * heads)](
            key,
            value,
            beta,
            total,
            first,
            inverse,
            d_written,
            d_old,
            d_read_key,
            d_totals,
            d_key,
            d_value,
            d_decay,
            d_beta,
            tokens,
            heads,
            keys,
            values,
            key.stride(1),
            value.stride(1),
            d_value.stride(1),
            len(d_totals),
            DOCUMENTS=first is not None,
            REPEATS=heads // key.shape[2],
            EPSILON=EPSILON,
            PRECISION=precision_of(key),
            CHUNK=CHUNK,
            KEYS=min(COLUMNS, columns(keys)),
            VALUES=min(COLUMNS, columns(values)),
            num_warps=8,
            num_stages=2,
        )
    return d_key, d_decay, d_beta

"""The states between chunks, and their gradients: the only steps that run one after another."""

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
    last_of,
    masked_exp,
    precision_of,
    rows_of,
    starts_of,
    state_places,
    store_tile,
    tile,
)

VALUE_COLUMNS = 32
"""Columns of a state in one program: columns are independent, and heads alone would not occupy a GPU."""


@triton.jit
def _states(
    key_at,
    fresh_at,
    old_at,
    total_at,
    first_at,
    states_at,
    written_at,
    tokens,
    heads,
    keys,
    values,
    key_stride,
    chunks,
    DOCUMENTS: tl.constexpr,
    REPEATS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Store the state before each chunk, and ``written = fresh - old · state``; the next state is ``state ⊙ decay +
    (decays to the chunk's end ⊙ k)ᵀ · written``.
    """
    start, row, head = tl.program_id(0) * VALUES, tl.program_id(1) // heads, tl.program_id(1) % heads
    state = tl.zeros([KEYS, VALUES], tl.float32)
    for chunk in range(chunks):
        place, token, inside = rows_of(chunk, row, tokens, CHUNK)
        first = starts_of(first_at, place, inside, DOCUMENTS)
        last, last_first = last_of(first_at, chunk, tokens, CHUNK, DOCUMENTS)
        total = tl.load(total_at + token * heads + head, mask=inside, other=0.0)
        end = tl.load(total_at + (row.to(tl.int64) * tokens + last) * heads + head)
        key = tile(key_at, token, inside, key_stride, head // REPEATS * keys, keys, KEYS)
        writing = factor(key, EPSILON) * masked_exp(end - total, inside & (first == last_first))
        through = masked_exp(end, last_first < chunk * CHUNK)
        places, exists = state_places(tl.program_id(1) * chunks + chunk, 0, start, keys, values, KEYS, VALUES)
        rounded = state.to(states_at.dtype.element_ty)
        tl.store(states_at + places, rounded, mask=exists)
        old = tile(old_at, token, inside, heads * keys, head * keys, keys, KEYS)
        fresh = tile(fresh_at, token, inside, heads * values, head * values + start, values - start, VALUES)
        written = fresh.to(tl.float32) - tl.dot(old, rounded, input_precision=PRECISION)
        store_tile(written_at, written, token, inside, heads * values, head * values + start, values - start, VALUES)
        written = (written * writing[:, None]).to(key.dtype)
        state = state * through + tl.dot(tl.trans(key), written, input_precision=PRECISION)


@triton.jit
def _state_gradients(
    query_at,
    key_at,
    old_at,
    total_at,
    first_at,
    gradient_at,
    direct_at,
    d_states_at,
    d_written_at,
    tokens,
    heads,
    keys,
    values,
    query_stride,
    key_stride,
    scale,
    chunks,
    DOCUMENTS: tl.constexpr,
    REPEATS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Store the gradient of the state after each chunk, and of the values written in it: ``direct + (decays to the
    chunk's end ⊙ k) · d_state``; before the chunk it is ``d_state ⊙ decay + (decays since the start ⊙ q)ᵀ · gradient -
    oldᵀ · d_written``.
    """
    start, row, head = tl.program_id(0) * VALUES, tl.program_id(1) // heads, tl.program_id(1) % heads
    d_state = tl.zeros([KEYS, VALUES], tl.float32)
    for step in range(chunks):
        chunk = chunks - 1 - step
        place, token, inside = rows_of(chunk, row, tokens, CHUNK)
        first = starts_of(first_at, place, inside, DOCUMENTS)
        last, last_first = last_of(first_at, chunk, tokens, CHUNK, DOCUMENTS)
        total = tl.load(total_at + token * heads + head, mask=inside, other=0.0)
        end = tl.load(total_at + (row.to(tl.int64) * tokens + last) * heads + head)
        key = tile(key_at, token, inside, key_stride, head // REPEATS * keys, keys, KEYS)
        writing = factor(key, EPSILON) * masked_exp(end - total, inside & (first == last_first))
        through = masked_exp(end, last_first < chunk * CHUNK)
        places, exists = state_places(tl.program_id(1) * chunks + chunk, 0, start, keys, values, KEYS, VALUES)
        rounded = d_state.to(d_states_at.dtype.element_ty)
        tl.store(d_states_at + places, rounded, mask=exists)
        direct = tile(direct_at, token, inside, heads * values, head * values + start, values - start, VALUES)
        d_written = direct.to(tl.float32) + writing[:, None] * tl.dot(key, rounded, input_precision=PRECISION)
        store_tile(
            d_written_at, d_written, token, inside, heads * values, head * values + start, values - start, VALUES
        )
        query = tile(query_at, token, inside, query_stride, head // REPEATS * keys, keys, KEYS)
        reading = scale * factor(query, EPSILON) * masked_exp(total, inside & (first < chunk * CHUNK))
        gradient = tile(gradient_at, token, inside, heads * values, head * values + start, values - start, VALUES)
        read = (gradient.to(tl.float32) * reading[:, None]).to(query.dtype)
        old = tile(old_at, token, inside, heads * keys, head * keys, keys, KEYS)
        d_state = d_state * through + tl.dot(tl.trans(query), read, input_precision=PRECISION)
        d_state -= tl.dot(tl.trans(old), d_written.to(old.dtype), input_precision=PRECISION)


def delta_states(key: Tensor, fresh: Tensor, old: Tensor, total: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the states before the chunks, (rows, heads, chunks, keys, values), and what the positions write."""
    rows, tokens, heads, values = fresh.shape
    keys, chunks = key.shape[3], chunks_of(tokens)
    states, written = key.new_empty(rows, heads, chunks, keys, values), torch.empty_like(fresh)
    width = min(VALUE_COLUMNS, columns(values))
    with torch.cuda.device_of(key):
        _states[(triton.cdiv(values, width), rows * heads)](
            key,
            fresh,
            old,
            total,
            first,
            states,
            written,
            tokens,
            heads,
            keys,
            values,
            key.stride(1),
            chunks,
            DOCUMENTS=first is not None,
            REPEATS=heads // key.shape[2],
            EPSILON=EPSILON,
            PRECISION=precision_of(key),
            CHUNK=CHUNK,
            KEYS=columns(keys),
            VALUES=width,
            num_warps=8,
            num_stages=2,
        )
    return states, written


def delta_state_gradients(
    query: Tensor,
    key: Tensor,
    old: Tensor,
    total: Tensor,
    first: Tensor | None,
    gradient: Tensor,
    direct: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the states after the chunks, and of what the positions write."""
    rows, tokens, heads, values = gradient.shape
    keys, chunks = key.shape[3], chunks_of(tokens)
    d_states, d_written = key.new_empty(rows, heads, chunks, keys, values), torch.empty_like(direct)
    width = min(VALUE_COLUMNS, columns(values))
    with torch.cuda.device_of(key):
        _state_gradients[(triton.cdiv(values, width), rows * heads)](
            query,
            key,
            old,
            total,
            first,
            gradient,
            direct,
            d_states,
            d_written,
            tokens,
            heads,
            keys,
            values,
            query.stride(1),
            key.stride(1),
            keys**-0.5,
            chunks,
            DOCUMENTS=first is not None,
            REPEATS=heads // key.shape[2],
            EPSILON=EPSILON,
            PRECISION=precision_of(key),
            CHUNK=CHUNK,
            KEYS=columns(keys),
            VALUES=width,
            num_warps=8,
            num_stages=2,
        )
    return d_states, d_written

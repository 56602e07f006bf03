"""Outputs of all chunks at once, and the gradients of what they are computed from."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker.training.model.delta_rule import CHUNK, EPSILON
from worker.training.model.kernels.delta_rule.operators import KEY_COLUMNS
from worker.training.model.kernels.delta_rule.tiles import (
    chunks_of,
    columns,
    factor,
    factor_in_blocks,
    last_of,
    masked_exp,
    precision_of,
    rows_of,
    starts_of,
    state_places,
    store_tile,
    tile,
    visible,
)

VALUE_COLUMNS = 32


@triton.jit
def _outputs(
    query_at,
    key_at,
    total_at,
    first_at,
    states_at,
    written_at,
    output_at,
    tokens,
    heads,
    keys,
    values,
    query_stride,
    key_stride,
    scale,
    DOCUMENTS: tl.constexpr,
    REPEATS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Store ``(decays since the chunk's start ⊙ q) · state + (q·kᵀ ⊙ decays between the positions) · written``."""
    chunk, row, head = tl.program_id(0), tl.program_id(1) // heads, tl.program_id(1) % heads
    place, token, inside = rows_of(chunk, row, tokens, CHUNK)
    first = starts_of(first_at, place, inside, DOCUMENTS)
    total = tl.load(total_at + token * heads + head, mask=inside, other=0.0)
    query = tile(query_at, token, inside, query_stride, head // REPEATS * keys, keys, KEYS)
    key = tile(key_at, token, inside, key_stride, head // REPEATS * keys, keys, KEYS)
    by_query = scale * factor(query, EPSILON)
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    scores *= by_query[:, None] * factor(key, EPSILON)[None, :]
    scores *= masked_exp(total[:, None] - total[None, :], visible(first, inside, CHUNK))
    reading = by_query * masked_exp(total, inside & (first < chunk * CHUNK))
    for start in range(0, values, VALUES):
        number = tl.program_id(1) * tl.num_programs(0) + chunk
        places, exists = state_places(number, 0, start, keys, values, KEYS, VALUES)
        state = tl.load(states_at + places, mask=exists, other=0.0)
        written = tile(written_at, token, inside, heads * values, head * values + start, values - start, VALUES)
        output = reading[:, None] * tl.dot(query, state, input_precision=PRECISION)
        output += tl.dot(scores.to(written.dtype), written, input_precision=PRECISION)
        store_tile(output_at, output, token, inside, heads * values, head * values + start, values - start, VALUES)


@triton.jit
def _direct_gradient(
    query_at,
    key_at,
    total_at,
    first_at,
    gradient_at,
    direct_at,
    tokens,
    heads,
    keys,
    values,
    query_stride,
    key_stride,
    scale,
    DOCUMENTS: tl.constexpr,
    REPEATS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Store ``(q·kᵀ ⊙ decays between the positions)ᵀ · gradient``."""
    chunk, row, head = tl.program_id(0), tl.program_id(1) // heads, tl.program_id(1) % heads
    place, token, inside = rows_of(chunk, row, tokens, CHUNK)
    first = starts_of(first_at, place, inside, DOCUMENTS)
    total = tl.load(total_at + token * heads + head, mask=inside, other=0.0)
    query = tile(query_at, token, inside, query_stride, head // REPEATS * keys, keys, KEYS)
    key = tile(key_at, token, inside, key_stride, head // REPEATS * keys, keys, KEYS)
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    scores *= scale * factor(query, EPSILON)[:, None] * factor(key, EPSILON)[None, :]
    scores *= masked_exp(total[:, None] - total[None, :], visible(first, inside, CHUNK))
    gradient = tile(gradient_at, token, inside, heads * values, head * values, values, VALUES)
    direct = tl.dot(tl.trans(scores).to(gradient.dtype), gradient, input_precision=PRECISION)
    store_tile(direct_at, direct, token, inside, heads * values, head * values, values, VALUES)


@triton.jit
def _output_gradients(
    query_at,
    key_at,
    total_at,
    first_at,
    states_at,
    written_at,
    gradient_at,
    d_states_at,
    d_written_at,
    d_query_at,
    d_key_at,
    d_old_at,
    d_totals_at,
    tokens,
    heads,
    keys,
    values,
    query_stride,
    key_stride,
    scale,
    DOCUMENTS: tl.constexpr,
    REPEATS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Store the gradients of normalised queries and keys, of `old`, and of the sums of logarithms, through outputs and
    states, from a block of columns of the keys.

    ``d_reader = gradient · stateᵀ`` and ``d_writer = written · d_stateᵀ``, each ⊙ its decay; ``d_old = -d_written ·
    stateᵀ``; ``d_scores = (gradient · writtenᵀ) ⊙ decays between the positions``.
    """
    chunk, chunks, block = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    row, head, key_start = tl.program_id(2) // heads, tl.program_id(2) % heads, block * KEYS
    place, token, inside = rows_of(chunk, row, tokens, CHUNK)
    first = starts_of(first_at, place, inside, DOCUMENTS)
    last, last_first = last_of(first_at, chunk, tokens, CHUNK, DOCUMENTS)
    number = tl.program_id(2) * chunks + chunk
    d_reader, d_writer = tl.zeros([CHUNK, KEYS], tl.float32), tl.zeros([CHUNK, KEYS], tl.float32)
    d_old, d_scores = tl.zeros([CHUNK, KEYS], tl.float32), tl.zeros([CHUNK, CHUNK], tl.float32)
    passed = 0.0
    for start in range(0, values, VALUES):
        places, exists = state_places(number, key_start, start, keys, values, KEYS, VALUES)
        state = tl.load(states_at + places, mask=exists, other=0.0)
        d_state = tl.load(d_states_at + places, mask=exists, other=0.0)
        at, left = head * values + start, values - start
        written = tile(written_at, token, inside, heads * values, at, left, VALUES)
        gradient = tile(gradient_at, token, inside, heads * values, at, left, VALUES)
        d_written = tile(d_written_at, token, inside, heads * values, at, left, VALUES)
        d_reader += tl.dot(gradient, tl.trans(state), input_precision=PRECISION)
        d_writer += tl.dot(written, tl.trans(d_state), input_precision=PRECISION)
        d_old -= tl.dot(d_written, tl.trans(state), input_precision=PRECISION)
        d_scores += tl.dot(gradient, tl.trans(written), input_precision=PRECISION)
        passed += tl.sum(tl.sum(state.to(tl.float32) * d_state.to(tl.float32), 1), 0)
    at, left = head * keys + key_start, keys - key_start
    store_tile(d_old_at, d_old, token, inside, heads * keys, at, left, KEYS)
    total = tl.load(total_at + token * heads + head, mask=inside, other=0.0)
    end = tl.load(total_at + (row.to(tl.int64) * tokens + last) * heads + head)
    d_reader *= scale * masked_exp(total, inside & (first < chunk * CHUNK))[:, None]
    d_writer *= masked_exp(end - total, inside & (first == last_first))[:, None]
    d_scores *= scale * masked_exp(total[:, None] - total[None, :], visible(first, inside, CHUNK))
    own = head // REPEATS * keys
    by_query = factor_in_blocks(query_at, token, inside, query_stride, own, keys, EPSILON, KEYS)
    by_key = factor_in_blocks(key_at, token, inside, key_stride, own, keys, EPSILON, KEYS)
    query = tile(query_at, token, inside, query_stride, own + key_start, left, KEYS)
    key = tile(key_at, token, inside, key_stride, own + key_start, left, KEYS)
    similar = tl.dot(query, tl.trans(key), input_precision=PRECISION) * by_query[:, None] * by_key[None, :]
    # What one position adds another loses, so these sums are of unrounded values.
    pairs = d_scores * similar
    written_by = tl.sum(d_writer * key.to(tl.float32), 1) * by_key
    d_total = tl.sum(pairs, 1) - tl.sum(pairs, 0) + tl.sum(d_reader * query.to(tl.float32), 1) * by_query - written_by
    at_end = tl.sum(written_by, 0) + passed * masked_exp(end, last_first < chunk * CHUNK)
    d_total += tl.where(place == last, at_end, 0.0)
    every = (tl.num_programs(2) // heads).to(tl.int64) * tokens
    tl.store(d_totals_at + (block * every + token) * heads + head, d_total, mask=inside)
    by_scores = (d_scores * by_key[None, :]).to(key.dtype)
    d_reader += tl.dot(by_scores, key, input_precision=PRECISION)
    store_tile(d_query_at, d_reader, token, inside, heads * keys, at, left, KEYS)
    by_scores = (d_scores * by_query[:, None]).to(query.dtype)
    d_writer += tl.dot(tl.trans(by_scores), query, input_precision=PRECISION)
    store_tile(d_key_at, d_writer, token, inside, heads * keys, at, left, KEYS)


def delta_outputs(
    query: Tensor, key: Tensor, total: Tensor, first: Tensor | None, states: Tensor, written: Tensor
) -> Tensor:
    """Return the outputs, (rows, tokens, heads, values)."""
    rows, tokens, heads, values = written.shape
    keys, output = key.shape[3], torch.empty_like(written)
    with torch.cuda.device_of(key):
        _outputs[(chunks_of(tokens), rows * heads)](
            query,
            key,
            total,
            first,
            states,
            written,
            output,
            tokens,
            heads,
            keys,
            values,
            query.stride(1),
            key.stride(1),
            keys**-0.5,
            DOCUMENTS=first is not None,
            REPEATS=heads // key.shape[2],
            EPSILON=EPSILON,
            PRECISION=precision_of(key),
            CHUNK=CHUNK,
            KEYS=columns(keys),
            VALUES=min(VALUE_COLUMNS, columns(values)),
            num_warps=4,
        )
    return output


def delta_direct_gradient(query: Tensor, key: Tensor, total: Tensor, first: Tensor | None, gradient: Tensor) -> Tensor:
    """Return the gradient of what positions write through the outputs of their own chunk."""
    rows, tokens, heads, values = gradient.shape
    keys, direct = key.shape[3], torch.empty_like(gradient)
    with torch.cuda.device_of(key):
        _direct_gradient[(chunks_of(tokens), rows * heads)](
            query,
            key,
            total,
            first,
            gradient,
            direct,
            tokens,
            heads,
            keys,
            values,
            query.stride(1),
            key.stride(1),
            keys**-0.5,
            DOCUMENTS=first is not None,
            REPEATS=heads // key.shape[2],
            EPSILON=EPSILON,
            PRECISION=precision_of(key),
            CHUNK=CHUNK,
            KEYS=columns(keys),
            VALUES=columns(values),
            num_warps=4,
        )
    return direct


def delta_output_gradients(
    query: Tensor,
    key: Tensor,
    total: Tensor,
    first: Tensor | None,
    states: Tensor,
    written: Tensor,
    gradient: Tensor,
    d_states: Tensor,
    d_written: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of normalised queries and keys and of `old`, (rows, tokens, heads, keys), and those of the
    sums of logarithms from each block of columns, (blocks, rows, tokens, heads).
    """
    rows, tokens, heads, values = gradient.shape
    keys = key.shape[3]
    width = min(KEY_COLUMNS, columns(keys))
    blocks = triton.cdiv(keys, width)
    d_query, d_key, d_old = (key.new_empty(rows, tokens, heads, keys) for _ in range(3))
    d_totals = total.new_empty(blocks, *total.shape)
    with torch.cuda.device_of(key):
        _output_gradients[(chunks_of(tokens), blocks, rows * heads)](
            query,
            key,
            total,
            first,
            states,
            written,
            gradient,
            d_states,
            d_written,
            d_query,
            d_key,
            d_old,
            d_totals,
            tokens,
            heads,
            keys,
            values,
            query.stride(1),
            key.stride(1),
            keys**-0.5,
            DOCUMENTS=first is not None,
            REPEATS=heads // key.shape[2],
            EPSILON=EPSILON,
            PRECISION=precision_of(key),
            CHUNK=CHUNK,
            KEYS=width,
            VALUES=min(VALUE_COLUMNS, columns(values)),
            num_warps=8,
            num_stages=2,
        )
    return d_query, d_key, d_old, d_totals

"""Common parts of the kernels of the delta rule: places in a chunk, their decays, and tiles of tensors."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from worker.training.model.delta_rule import CHUNK


@triton.jit
def rows_of(chunk, row, tokens, CHUNK: tl.constexpr):
    """Return the places of a chunk's positions in their row and among all tokens, and whether they are in the row."""
    place = chunk * CHUNK + tl.arange(0, CHUNK)
    return place, row.to(tl.int64) * tokens + place, place < tokens


@triton.jit
def starts_of(first_at, place, inside, DOCUMENTS: tl.constexpr):
    """Return the place at which each position's document starts."""
    return tl.load(first_at + place, mask=inside, other=-1) if DOCUMENTS else place * 0


@triton.jit
def last_of(first_at, chunk, tokens, CHUNK: tl.constexpr, DOCUMENTS: tl.constexpr):
    """Return the chunk's last place in the row, and the start of its document."""
    last = tl.minimum((chunk + 1) * CHUNK, tokens) - 1
    return last, tl.load(first_at + last) if DOCUMENTS else last * 0


@triton.jit
def visible(first, inside, CHUNK: tl.constexpr):
    """Return whether position i sees position j, (CHUNK, CHUNK): an earlier one, or itself, of the same document."""
    step = tl.arange(0, CHUNK)
    return (step[:, None] >= step[None, :]) & (first[:, None] == first[None, :]) & inside[:, None]


@triton.jit
def masked_exp(exponent, mask):
    """Return the exponential, zero outside the mask, where the exponent may be large."""
    return tl.exp(tl.where(mask, exponent, float("-inf")))


@triton.jit
def tile(at, token, inside, stride, start, size, COLUMNS: tl.constexpr):
    """Load columns of tokens, (CHUNK, COLUMNS), from the column ``start`` on, of which ``size`` are left."""
    column = tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < size)[None, :]
    return tl.load(at + token[:, None] * stride + start + column[None, :], mask=mask, other=0.0)


@triton.jit
def store_tile(at, values, token, inside, stride, start, size, COLUMNS: tl.constexpr):
    """Store columns of tokens, where :func:`tile` loads them, in the tensor's dtype."""
    column = tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < size)[None, :]
    tl.store(at + token[:, None] * stride + start + column[None, :], values.to(at.dtype.element_ty), mask=mask)


@triton.jit
def state_places(number, key_start, start, keys, values, KEYS: tl.constexpr, VALUES: tl.constexpr):
    """Return where a part of a state lies, and which of its elements exist, (KEYS, VALUES)."""
    key, value = key_start + tl.arange(0, KEYS), start + tl.arange(0, VALUES)
    place = number.to(tl.int64) * keys * values + key[:, None] * values + value[None, :]
    return place, (key < keys)[:, None] & (value < values)[None, :]


@triton.jit
def factor(x, EPSILON: tl.constexpr):
    """Return the factor that normalises each row."""
    values = x.to(tl.float32)
    return tl.math.rsqrt(tl.sum(values * values, 1) + EPSILON)


@triton.jit
def factor_in_blocks(at, token, inside, stride, start, size, EPSILON: tl.constexpr, KEYS: tl.constexpr):
    """Return the factor that normalises each row, of which a block of KEYS columns is read at a time."""
    squares = inside.to(tl.float32) * 0.0
    for column in range(0, size, KEYS):
        values = tile(at, token, inside, stride, start + column, size - column, KEYS).to(tl.float32)
        squares += tl.sum(values * values, 1)
    return tl.math.rsqrt(squares + EPSILON)


def columns(size: int) -> int:
    """Return a power of two that holds the columns of a head; a product of tiles needs 16."""
    return max(16, 1 << (size - 1).bit_length())


def chunks_of(tokens: int) -> int:
    """Return the number of chunks of a row."""
    return -(-tokens // CHUNK)


def precision_of(x: Tensor) -> str:
    """Return how products of fp32 tiles are computed: for bf16 on tensor cores, whose errors are at most those of the
    result's rounding.
    """
    return "ieee" if x.element_size() == 4 else "tf32"

"""Agreement between implementations, bottom up: f32 operations and NF4 in NumPy compared with torch and bitsandbytes,
on the original's fixtures.

The whole models are compared in `test_merge.py` (merged against base + adapter), `tests/vllm/test_certificates.py` and
`tests/vllm/test_parity.py` (served against trained).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bitsandbytes.functional import dequantize_4bit, dequantize_blockwise, quantize_4bit

from tests.support.nf4_reference import (
    LEVELS,
    Floats,
    double_quantised,
    dynamic_code,
    original_double_quantised,
    quantise,
)
from worker.training.model.lm_head import head_loss
from worker.training.model.nf4 import BLOCK_SIZE, through_nf4

BATCH, HIDDEN, VOCAB = 5, 8, 13


def running(start: float, step: float, count: int) -> Floats:
    """An arithmetic sequence in float32, by repeated addition: each term has the rounding of those before it."""
    terms = np.empty(count, np.float32)
    value = np.float32(start)
    for index in range(count):
        terms[index] = value
        value = np.float32(value + np.float32(step))
    return terms


def lm_sequence() -> tuple[Floats, Floats, Floats]:
    """One running sequence that fills x [5, 8], then W (104 elements), then the bias [13]."""
    terms = running(0.11, 0.037, BATCH * HIDDEN + HIDDEN * VOCAB + VOCAB)
    x, weight, bias = np.split(terms, [BATCH * HIDDEN, BATCH * HIDDEN + HIDDEN * VOCAB])
    return x.reshape(BATCH, HIDDEN), weight, bias


def loops(left: Floats, right: Floats) -> Floats:
    """A product written out, in float64: no library orders its sums."""
    rows, inner, columns = left.shape[0], left.shape[1], right.shape[1]
    out = np.zeros((rows, columns))
    for row in range(rows):
        for column in range(columns):
            out[row, column] = sum(float(left[row, k]) * float(right[k, column]) for k in range(inner))
    return out.astype(np.float32)


def test_f32_matmul() -> None:
    left, right = running(0.1, 0.03, 35).reshape(5, 7), running(-0.2, 0.02, 28).reshape(7, 4)
    found = (torch.from_numpy(left) @ torch.from_numpy(right)).numpy()
    assert np.abs(found - loops(left, right)).max() < 1e-5


def test_f32_linear_lm_logits() -> None:
    x, weight, bias = lm_sequence()
    matrix = weight.reshape(HIDDEN, VOCAB)
    # torch's linear layers store [out, in].
    found = torch.nn.functional.linear(*map(torch.from_numpy, (x, matrix.T.copy(), bias))).numpy()
    expected = loops(x, matrix) + bias
    assert np.abs(found - expected).max() < 1e-5


def test_nf4_dequant_lm_reference() -> None:
    x, weight, bias = lm_sequence()
    stored = weight.reshape(VOCAB, HIDDEN)
    seen = quantise(stored, 8).dequantised()
    assert np.abs(seen - stored).max() > 1e-3
    found = torch.nn.functional.linear(*map(torch.from_numpy, (x, seen, bias))).numpy()
    expected = loops(x, seen.T) + bias
    assert np.abs(found - expected).max() < 1e-5


def test_cross_entropy() -> None:
    logits, labels = running(0.05, 0.071, 44).reshape(4, 11), [0, 5, 2, 9]
    wide = logits.astype(np.float64)
    log_sums = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1)) + wide.max(1)
    expected = float(np.mean(log_sums - wide[range(4), labels]))
    targets = torch.tensor(labels)
    plain = torch.nn.functional.cross_entropy(torch.from_numpy(logits), targets)
    assert abs(float(plain) - expected) < 5e-5
    # The trainer's own loss, over a head that passes the logits through; its sum has the weight 1/4 of each.
    head = torch.nn.Linear(11, 11, bias=False).requires_grad_(False)
    head.weight.copy_(torch.eye(11))
    trained, _ = head_loss(head, torch.from_numpy(logits), targets, torch.full((4,), 0.25))
    assert abs(float(trained) - expected) < 5e-5


def random_weight(rows: int, columns: int) -> Floats:
    """Normal values whose size differs from row to row, with a block of zeros."""
    random = np.random.default_rng(9)
    matrix = random.standard_normal((rows, columns)) * 2.0 ** random.integers(-6, 3, (rows, 1))
    matrix[0, :BLOCK_SIZE] = 0
    return matrix.astype(np.float32)


@pytest.mark.parametrize("block", [BLOCK_SIZE, 128])
def test_nf4_blocks_are_those_of_bitsandbytes(block: int) -> None:
    weight = random_weight(48, 256)
    packed, state = quantize_4bit(
        torch.from_numpy(weight), blocksize=block, compress_statistics=False, quant_type="nf4"
    )
    ours = quantise(weight, block)
    theirs = packed.flatten().numpy()
    # Two levels a byte, the first in the upper half.
    assert np.array_equal(np.stack([theirs >> 4, theirs & 15], axis=1).reshape(-1), ours.codes)
    assert np.array_equal(state.absmax.numpy().reshape(-1)[1:], ours.scales[1:])
    assert np.array_equal(state.code.numpy(), LEVELS)
    assert np.abs(dequantize_4bit(packed, state).numpy() - ours.dequantised()).max() == 0


def test_nf4_with_quantised_scales_is_that_of_bitsandbytes() -> None:
    weight = random_weight(96, 256)
    _, state = quantize_4bit(torch.from_numpy(weight), blocksize=BLOCK_SIZE, compress_statistics=True, quant_type="nf4")
    ours = quantise(weight, BLOCK_SIZE)
    assert np.abs(np.sort(state.state2.code.numpy()) - dynamic_code()).max() < 1e-6
    # A block of zeros has the scale 0 there and 1 here; its values are zeros either way, and its scale is left out.
    scales = ours.scales.copy()
    scales[0] = 0
    found = through_nf4(torch.from_numpy(weight), True).numpy().reshape(-1, BLOCK_SIZE)
    expected = ours.dequantised(double_quantised(scales)).reshape(-1, BLOCK_SIZE)
    equal = np.abs(found - expected).max(axis=1) < 1e-5
    # bitsandbytes finds the nearest 8-bit value by a table, and takes the other neighbour where both are as good as equally near.
    assert equal.mean() > 0.99
    theirs = (dequantize_blockwise(state.absmax, state.state2) + state.offset).numpy()
    error, least = np.abs(theirs - scales), np.abs(double_quantised(scales) - scales)
    assert (error <= 1.05 * least + 1e-6).all()
    assert np.abs(found - ours.dequantised().reshape(-1, BLOCK_SIZE)).max() > 1e-3


def test_training_computes_with_the_reference_where_scales_are_kept() -> None:
    weight = random_weight(48, 256)
    assert np.array_equal(
        through_nf4(torch.from_numpy(weight), False).numpy(), quantise(weight, BLOCK_SIZE).dequantised()
    )


def test_the_originals_scales_are_within_half_a_step() -> None:
    scales = np.abs(random_weight(4, 256)).reshape(-1)
    assert np.abs(original_double_quantised(scales) - scales).max() <= scales.max() / 127 / 2 * 1.0001


def test_elements_fill_their_blocks() -> None:
    with pytest.raises(ValueError, match="whole number of blocks"):
        quantise(np.ones(13, np.float32), 8)
    assert quantise(np.zeros((2, 8), np.float32), 8).scales.tolist() == [1, 1]

"""The scaled product: more exact than float32 can represent, and the same bits whatever the order of a sum."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.merging.exact_product import ScaledProduct, split


@st.composite
def factors(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two factors whose elements differ by many powers of two, zeros among them."""
    rows, inner, columns = (draw(st.integers(1, size)) for size in (9, 70, 9))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.integers(0, 30))

    def matrix(height: int, width: int) -> torch.Tensor:
        values = random.standard_normal((height, width)) * 2.0 ** random.integers(-spread, spread + 1, (height, width))
        values[random.random((height, width)) < 0.1] = 0
        return torch.from_numpy(values.astype(np.float32))

    return matrix(rows, inner), matrix(inner, columns)


@given(factors())
@settings(max_examples=100)
def test_it_is_the_product_to_forty_bits_of_the_largest_term(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    left, right = pair
    exact = left.numpy().astype(np.longdouble) @ right.numpy().astype(np.longdouble) * np.longdouble(1.6)
    found = ScaledProduct(left, right, 1.6).rows(0, left.shape[0]).numpy()
    largest = left.abs().double().amax(1, keepdim=True) * right.abs().double().amax(0, keepdim=True)
    assert (np.abs(found - exact) <= left.shape[1] * largest.numpy() * 2.0**-38 + 1e-300).all()


@given(factors(), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_the_order_of_the_inner_sum_changes_no_bit(pair: tuple[torch.Tensor, torch.Tensor], random: object) -> None:
    left, right = pair
    order = torch.randperm(left.shape[1])
    one = ScaledProduct(left, right, 0.3).rows(0, left.shape[0])
    other = ScaledProduct(left[:, order], right[order], 0.3).rows(0, left.shape[0])
    assert torch.equal(one, other)


def test_rows_are_those_of_the_whole() -> None:
    left, right = torch.randn(300, 16), torch.randn(16, 40)
    product = ScaledProduct(left, right, 2.0)
    assert torch.equal(torch.cat([product.rows(0, 7), product.rows(7, 300)]), product.rows(0, 300))


def test_parts_have_so_many_bits_and_add_up() -> None:
    matrix = torch.randn(20, 30).float().double()
    high, low = split(matrix, 22, dim=1)
    assert torch.equal(high + low, matrix)  # 24 bits are in 44
    largest = matrix.abs().amax(1, keepdim=True)
    assert (low.abs() <= largest * 2.0**-21).all()


def test_an_adapter_of_zeros_adds_zero() -> None:
    assert not ScaledProduct(torch.zeros(3, 4), torch.randn(4, 5), 2.0).rows(0, 3).any()

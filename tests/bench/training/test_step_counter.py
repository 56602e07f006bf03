"""The counter of operations: which operations count as work, the bytes that they move, and the live tensors."""

from __future__ import annotations

import pytest
import torch

from bench.training.step_counter import DELTA_RULE, ELEMENTWISE, PRODUCTS, Card, StepCounter
from worker.training.model.kernels.delta_rule import operators

pytestmark = pytest.mark.torch
CARD = Card(bandwidth=1e12, products=1e12, products_fp32=1e11, attention=1e12, launch=1e-9)


def test_views_are_not_work_and_results_are() -> None:
    left, right = torch.ones(64, 32), torch.ones(32, 16)
    with StepCounter(CARD) as counter:
        left.t().unsqueeze(0)
        found = left @ right
        found.add_(1)
    product, sums = counter.groups[PRODUCTS], counter.groups[ELEMENTWISE]
    assert (product.operations, product.flops, product.bytes) == (1, 2 * 64 * 32 * 16, 4 * (2048 + 512 + 1024))
    assert (sums.operations, sums.bytes) == (1, 2 * found.nbytes)
    assert product.seconds == pytest.approx(product.flops / CARD.products_fp32)


def test_memory_is_alive_until_its_last_tensor_ends() -> None:
    with StepCounter(CARD) as counter:
        first = torch.zeros(256)
        kept = first[:1]
        second = first + 1
        del first, second
        assert (counter.live, counter.peak) == (1024, 2048)
        del kept
        assert counter.live == 0


def test_what_autograd_saves_is_alive() -> None:
    weight = torch.ones(8, requires_grad=True)
    with StepCounter(CARD) as counter:
        output = (weight.exp() * 2).sum()
        assert counter.live == 32 + 4, "the exponentials, and the sum"
        output.backward()
        del output
        assert counter.live == 32, "the gradient"


def test_a_number_that_is_repeated_is_read_once() -> None:
    one = torch.ones(1, 4).expand(1000, 4)
    with StepCounter(CARD) as counter:
        one + 1
    assert counter.groups[ELEMENTWISE].bytes == 16 + 16_000


def test_a_kernel_with_products_of_its_own_is_as_slow_as_its_flops_or_bytes() -> None:
    """Counted from the shapes of its tensors: products of chunks of 64 positions, 3 of them for 130 tokens."""
    decay, beta = torch.zeros(1, 130, 4, device="meta"), torch.zeros(1, 130, 4, device="meta", dtype=torch.bfloat16)
    key, value = (torch.zeros(1, 130, heads, 32, device="meta", dtype=torch.bfloat16) for heads in (2, 4))
    with StepCounter(CARD) as counter:
        total, inverse = operators.inverse(decay, beta, key, None)
        system = counter.groups[DELTA_RULE].seconds
        operators.solved(key, value, beta, total, None, inverse)
    work, chunks = counter.groups[DELTA_RULE], 3 * 4
    inverting = chunks * 2 * 64 * (64 * 32 + 4 * 64 * 64)
    solving = chunks * 2 * 64 * 64 * (32 + 32)
    assert (work.operations, work.flops) == (2, inverting + solving)
    outputs = total.nbytes + inverse.nbytes + 2 * value.nbytes
    assert (
        work.bytes
        == decay.nbytes + 2 * (beta.nbytes + key.nbytes) + value.nbytes + total.nbytes + inverse.nbytes + outputs
    )
    assert system == pytest.approx(inverting / CARD.products_fp32)
    assert work.seconds - system == pytest.approx(solving / CARD.products)

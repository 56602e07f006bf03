"""Linear attention's scan compared with transformers' reference: values, gradients, boundaries, and memory traffic."""

from __future__ import annotations

from inspect import unwrap
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

from worker.training.model.delta_rule import CHUNK, gated_delta_rule

EQUAL = 1e-6
"""Largest relative difference, of the norms, in fp32."""
LENGTHS = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 200]
BOUNDARIES = [[0, 200], [0, 1, 70, 128, 131, 300], [0, 64, 128, 150], list(range(0, 141, 7))]


def inputs(tokens: int, rows: int = 1, heads: int = 3, device: str = "cpu") -> list[torch.Tensor]:
    """Random queries, keys (16), values (24), decays and rates, as the model has them."""
    torch.manual_seed(tokens)
    query, key = (torch.randn(rows, tokens, heads, 16, device=device) for _ in range(2))
    value, rate = torch.randn(rows, tokens, heads, 24, device=device), torch.randn(rows, tokens, heads, device=device)
    decay = -0.5 * torch.nn.functional.softplus(torch.randn(rows, tokens, heads, device=device))
    return [one.requires_grad_() for one in (query, key, value, decay, rate.sigmoid().detach())]


def reference(query, key, value, decay, beta):
    # Transformers replaces it where flash-linear-attention is installed.
    compute = unwrap(torch_chunk_gated_delta_rule)
    return compute(query, key, value, g=decay, beta=beta, use_qk_l2norm_in_kernel=True)[0]


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours - theirs).norm() <= EQUAL * theirs.norm() + 1e-12


def assert_learns_alike(tokens: int, boundaries: list[int] | None, rows: int = 1) -> None:
    """Compare values and gradients with the reference, document by document."""
    ours, theirs = inputs(tokens, rows), inputs(tokens, rows)
    edges = None if boundaries is None else torch.tensor(boundaries, dtype=torch.int32)
    output = gated_delta_rule(*ours, boundaries=edges)
    parts = boundaries or [0, tokens]
    expected = torch.cat([reference(*(one[:, start:end] for one in theirs)) for start, end in pairwise(parts)], 1)
    weight = torch.randn_like(expected)
    (output * weight).sum().backward()
    (expected * weight).sum().backward()
    assert_equal(output, expected)
    for one, other in zip(ours, theirs, strict=True):
        assert_equal(one.grad, other.grad)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_rows_have_the_references_values_and_gradients(tokens):
    assert_learns_alike(tokens, None, rows=2)


@pytest.mark.parametrize("boundaries", BOUNDARIES, ids=str)
def test_documents_in_one_row_see_nothing_of_each_other(boundaries):
    assert_learns_alike(boundaries[-1], boundaries)


def test_strong_decays_of_one_document_do_not_round_the_next():
    query, key, value, decay, beta = (one.detach() for one in inputs(60))
    decay = torch.cat([torch.full_like(decay[:, :40], -50.0), decay[:, 40:]], 1)
    packed = gated_delta_rule(query, key, value, decay, beta, torch.tensor([0, 40, 60], dtype=torch.int32))
    assert_equal(packed[:, 40:], reference(*(one[:, 40:] for one in (query, key, value, decay, beta))))


class Bytes(TorchDispatchMode):
    """Sums the bytes that operations read and write."""

    total = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output = operation(*args, **(kwargs or {}))
        if not operation.is_view:
            leaves = torch.utils._pytree.tree_leaves((args, output))
            self.total += sum(one.nbytes for one in leaves if isinstance(one, torch.Tensor))
        return output


def moved(function, tokens: int) -> int:
    with Bytes() as seen:
        function(*inputs(tokens, device="meta")).sum().backward()
    return seen.total


def test_memory_traffic_grows_with_the_length_and_not_with_its_square():
    assert moved(gated_delta_rule, 4096) < 8.5 * moved(gated_delta_rule, 512)

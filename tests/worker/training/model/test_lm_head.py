"""The head's loss equals the cross-entropy over all logits, but is computed in chunks without keeping the logits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

import shared.preflight.memory
from worker.training.model.lm_head import head_log_probs, head_loss

VOCAB, WIDTH = 37, 8


def case(targets: int, seed: int, *, bias: bool = False):
    generator = torch.Generator().manual_seed(seed)
    head = torch.nn.Linear(WIDTH, VOCAB, bias=bias).requires_grad_(False)
    head.weight.data = torch.randn(VOCAB, WIDTH, generator=generator)
    hidden = torch.randn(targets, WIDTH, generator=generator)
    ids = torch.randint(0, VOCAB, (targets,), generator=generator)
    return head, hidden, ids, 2 * torch.rand(targets, generator=generator)


@pytest.fixture(params=[1, 3, 1000], ids=lambda rows: f"{rows} rows a chunk")
def chunked(request, monkeypatch):
    monkeypatch.setattr(shared.preflight.memory, "CHUNK_ELEMENTS", request.param * VOCAB)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("chunked")
def test_loss_gradient_and_hits_are_those_of_cross_entropy(bias):
    head, hidden, ids, weights = case(10, seed=1, bias=bias)
    one, other = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    loss, correct = head_loss(head, one, ids, weights)
    (3 * loss).backward()
    logits = head(other)
    expected = (cross_entropy(logits, ids, reduction="none") * weights).sum()
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(one.grad, other.grad)
    assert correct == (logits.argmax(-1) == ids).sum()


@settings(max_examples=25, deadline=None)
@given(targets=st.integers(1, 20), seed=st.integers(0, 1000))
def test_it_does_not_matter_how_the_targets_are_cut(targets, seed):
    head, hidden, ids, weights = case(targets, seed)
    whole, _ = head_loss(head, hidden, ids, weights)
    cut = targets // 2
    parts = [slice(0, cut), slice(cut, targets)] if cut else [slice(0, targets)]
    summed = sum(head_loss(head, hidden[part], ids[part], weights[part])[0] for part in parts)
    torch.testing.assert_close(whole, summed)


def test_a_head_that_learns_gets_its_gradient():
    """A LoRA layer on the head is not a frozen head: autograd goes through it."""
    head, hidden, ids, weights = case(5, seed=2)
    head.requires_grad_(True)
    head_loss(head, hidden.requires_grad_(), ids, weights)[0].backward()
    assert head.weight.grad.abs().sum() > 0
    assert hidden.grad.abs().sum() > 0


def test_nothing_is_computed_for_a_gradient_nobody_wants():
    head, hidden, ids, weights = case(5, seed=3)
    loss, _ = head_loss(head, hidden, ids, weights)
    assert not loss.requires_grad


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.usefixtures("chunked")
def test_log_probabilities_and_their_gradient_are_those_of_log_softmax(bias, learns):
    head, hidden, ids, weights = case(10, seed=2, bias=bias)
    head.requires_grad_(learns)
    one, other = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    found = head_log_probs(head, one, ids)
    (found * weights).sum().backward()
    expected = head(other).log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    (expected * weights).sum().backward()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-6)


def test_no_target_has_no_log_probability():
    head, hidden, ids, _ = case(0, seed=3)
    assert head_log_probs(head, hidden, ids).shape == (0,)

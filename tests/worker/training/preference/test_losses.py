"""Losses of pairs: values at known points, gradients, and the first loss of each."""

from __future__ import annotations

import math

import pytest
import torch

from shared.contract.sections import PreferenceSection
from worker.training.preference.losses import first_loss, preference_loss, rated_first_loss, rated_loss

LENGTHS = torch.tensor([[3, 7], [11, 2]])
SECTIONS = [
    {},
    {"beta": 0.5},
    {"label_smoothing": 0.2},
    {"label_smoothing": 0.2, "smoothing": "robust"},
    {"loss": "sigmoid_norm"},
    {"loss": "ipo"},
]


@pytest.mark.parametrize("fields", SECTIONS)
def test_a_policy_that_equals_its_reference_has_the_first_loss(fields: dict[str, object]) -> None:
    section, scores = PreferenceSection.model_validate(fields), -100 * torch.rand((2, 2))
    found = preference_loss(section, scores, scores.clone(), LENGTHS)
    assert torch.allclose(found, torch.full((2,), first_loss(section)), atol=1e-6)


def test_known_values() -> None:
    policy, reference = torch.tensor([[-10.0, -30.0]]), torch.tensor([[-14.0, -28.0]])
    lengths = torch.tensor([[2, 4]])
    margins = {"sigmoid": 0.1 * 6, "sigmoid_norm": 4 / 2 + 2 / 4}
    for loss, margin in margins.items():
        found = preference_loss(PreferenceSection.model_validate({"loss": loss}), policy, reference, lengths).item()
        assert found == pytest.approx(math.log1p(math.exp(-margin)), abs=1e-6)
    ipo = preference_loss(PreferenceSection.model_validate({"loss": "ipo"}), policy, reference, lengths).item()
    assert ipo == pytest.approx((2.5 - 5) ** 2, abs=1e-5)


@pytest.mark.parametrize("fields", SECTIONS)
def test_gradient_is_that_of_finite_differences(fields: dict[str, object]) -> None:
    section = PreferenceSection.model_validate(fields)
    reference = -10 * torch.rand((2, 2), dtype=torch.float64)
    policy = (reference + torch.randn((2, 2), dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda scores: preference_loss(section, scores, reference, LENGTHS), policy)


def test_extreme_margins_stay_finite() -> None:
    policy, reference = torch.tensor([[-1e5, 0.0], [0.0, -1e5]], requires_grad=True), torch.zeros((2, 2))
    loss = preference_loss(PreferenceSection(), policy, reference, LENGTHS).sum()
    loss.backward()
    assert loss.isfinite()
    assert policy.grad is not None
    assert policy.grad.isfinite().all()


def test_known_values_of_rated_answers() -> None:
    section = PreferenceSection.model_validate({"loss": "kto", "desirable_weight": 2.0, "undesirable_weight": 0.5})
    found = rated_loss(section, torch.tensor([4.0, 4.0]), torch.tensor([True, False]), 1.0)
    assert found.tolist() == pytest.approx([2 / (1 + math.exp(0.3)), 0.5 / (1 + math.exp(-0.3))], abs=1e-6)
    even = rated_loss(section, torch.zeros(4), torch.tensor([True, False, False, False]), 0.0).mean().item()
    assert even == pytest.approx(rated_first_loss(section, 0.25), abs=1e-6)

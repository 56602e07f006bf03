"""Losses of pairs, from log-probabilities of whole answers. Pure, in fp32.

Sources: DPO (Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, equation 7), IPO (Azar et al. 2023,
https://arxiv.org/abs/2310.12036, equation 17, by token as TRL has it), label smoothing as cDPO, and its unbiased form
(Chowdhury et al. 2024, https://arxiv.org/abs/2403.00409).
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import softplus

from shared.contract.choices import PreferenceLoss, Smoothing
from shared.contract.sections import PreferenceSection


def preference_loss(
    section: PreferenceSection, policy: torch.Tensor, reference: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Return the loss of each pair, (pairs,).

    Args:
        section: which loss, and its parameters.
        policy: (pairs, 2), log-probability of the preferred and of the rejected answer, in nats.
        reference: the same by the reference.
        lengths: (pairs, 2), tokens of the answers.
    """
    gained = policy - reference
    if section.loss is not PreferenceLoss.SIGMOID:
        gained = gained / lengths
    margin, beta = gained[:, 0] - gained[:, 1], section.strength
    if section.loss is PreferenceLoss.IPO:
        return (margin - 1 / (2 * beta)) ** 2
    right, wrong = softplus(-beta * margin), softplus(beta * margin)
    share = section.label_smoothing
    if section.smoothing is Smoothing.ROBUST:
        return ((1 - share) * right - share * wrong) / (1 - 2 * share)
    return (1 - share) * right + share * wrong


def first_loss(section: PreferenceSection) -> float:
    """Return the loss of a policy that equals its reference, whatever the pairs."""
    if section.loss is PreferenceLoss.IPO:
        return 1 / (4 * section.strength**2)
    return math.log(2)

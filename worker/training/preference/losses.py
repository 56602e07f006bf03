"""Losses of pairs and of rated answers, from log-probabilities of whole answers. Pure, in fp32.

Sources: DPO (Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, equation 7), IPO (Azar et al. 2023,
https://arxiv.org/abs/2310.12036, equation 17, per token as TRL has it), label smoothing as cDPO, and its unbiased form
(Chowdhury et al. 2024, https://arxiv.org/abs/2403.00409); KTO (Ethayarajh et al. 2024, https://arxiv.org/abs/2402.01306,
equation 7).
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
        section: the contract's section with the loss and its parameters.
        policy: (pairs, 2), log-probability of the preferred and of the rejected answer, in nats.
        reference: (pairs, 2), the reference's log-probabilities of both answers, in nats.
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
    """Return the loss of a policy that equals its reference; it is the same for all pairs."""
    if section.loss is PreferenceLoss.IPO:
        return 1 / (4 * section.strength**2)
    return math.log(2)


def rated_loss(section: PreferenceSection, gained: torch.Tensor, is_good: torch.Tensor, kl: float) -> torch.Tensor:
    """Return the loss of each rated answer, (answers,).

    Args:
        section: KTO's parameters, with both weights.
        gained: (answers,), log-probability gained over the reference, in nats.
        is_good: (answers,), bool.
        kl: the reference point, in nats; no gradient goes through it.
    """
    desirable, undesirable = rated_weights(section)
    beyond = torch.where(is_good, gained - kl, kl - gained)
    weights = torch.where(is_good, desirable, undesirable).to(gained.dtype)
    return weights * torch.sigmoid(-section.strength * beyond)


def rated_first_loss(section: PreferenceSection, share: float) -> float:
    """Return the loss of a policy that equals its reference on answers of which this share is rated good."""
    desirable, undesirable = rated_weights(section)
    return (desirable * share + undesirable * (1 - share)) / 2


def rated_weights(section: PreferenceSection) -> tuple[float, float]:
    """Return the weights of answers rated good and of answers rated bad; 1 where the contract sets none."""
    return section.desirable_weight or 1.0, section.undesirable_weight or 1.0

"""Merge fidelity: how much a merged model differs from base + adapter, on which its adapter's certificates were
measured.

The numbers are results of forward passes, whose last bits depend on the processor and the number of threads. A merged
model's name must not depend on these (decision 0021), so the numbers are not in its manifest but in a separate file,
which names the manifest's digest.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from shared.base_models.catalog import Sha256
from shared.contract.choices import BaseWeights

FIDELITY_NAME = "merge_fidelity.json"
PROBES_NAME = "merge_probes.json"
SHIFT_SHARE = 0.1
"""A divergence from training that is at least this share of the adapter's effect causes a warning."""


class Divergence(BaseModel):
    """Difference of two models' next-token distributions over the probe positions."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    mean_kl_nats: float = Field(description="Mean Kullback-Leibler divergence.")
    max_kl_nats: float = Field(description="At the worst position.")
    max_logit_difference: float = Field(description="Largest difference of a logit, of any token at any position.")


class MergeFidelity(BaseModel):
    """``merge_fidelity.json``: every comparison is computed in float32, from the tensors as they are stored."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model_digest: Sha256 = Field(description="SHA-256 of the merged model's manifest.")
    dtype: str = Field(description="Coarsest dtype that a merged tensor is stored in.")
    base_weights: BaseWeights = Field(description="The weights under the adapter in adapter_divergence.")
    positions: int = Field(description="Token positions that were compared.")
    adapter_divergence: Divergence = Field(description="KL(merged ‖ base + adapter): the rounding of the merge.")
    training_divergence: Divergence | None = Field(
        description="KL(merged ‖ the NF4 base that was trained on + adapter); null: trained on full precision."
    )
    effect: Divergence = Field(description="KL(base ‖ base + adapter): effect of the adapter, for comparison.")
    limit_nats: float = Field(description="Largest mean of adapter_divergence that passes.")

    @property
    def passed(self) -> bool:
        """Return true if the merge is faithful; a non-finite number never passes."""
        return self.adapter_divergence.mean_kl_nats <= self.limit_nats

    @property
    def warning(self) -> str | None:
        """Warning that the merged model is far from the trained one; None if the shift is small compared with the
        adapter's effect.
        """
        training = self.training_divergence
        return shift_warning(training.mean_kl_nats if training else None, self.effect.mean_kl_nats)


def shift_warning(training_nats: float | None, effect_nats: float) -> str | None:
    """Return :attr:`MergeFidelity.warning` for the mean divergence from training and the adapter's effect."""
    if training_nats is None or training_nats < SHIFT_SHARE * effect_nats:
        return None
    return (
        "The merged model has lost a part of the training: its divergence from the model as trained is"
        f" {training_nats:.2g} nats, and the adapter's whole effect {effect_nats:.2g}. Merge with --base-weights "
        "dequant_nf4,"
        " or train over 16 bit (quant.base none)."
    )


class MergeProbe(BaseModel):
    """Tokens, and their log-probabilities (nats) according to two models at each of ``positions``, given the earlier
    tokens.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    token_ids: list[int]
    positions: list[int] = Field(description="Indices into token_ids.")
    merged: list[float] = Field(
        description="Log-probabilities by the merged model, in float32 from its stored tensors."
    )
    base: list[float] = Field(description="Log-probabilities by the base's weights, without the adapter.")


class MergeProbes(BaseModel):
    """``merge_probes.json``: the reference values for a replica that serves the merged model."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model_digest: Sha256 = Field(description="SHA-256 of the merged model's manifest.")
    probes: list[MergeProbe] = Field(min_length=1)

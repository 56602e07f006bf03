"""The adapter that a run continues from (``adapter.continue_from``), fixed to its content at submission."""

from __future__ import annotations

import math

from shared.base_models.catalog import Sha256
from shared.contract.choices import HeldBase
from shared.contract.sections import AdapterSection
from shared.contract.values import ContractValue, TemplateArguments


class PlannedParent(ContractValue):
    """An adapter by content, with the facts about it that a plan depends on.

    Attributes:
        base_digest: digest of the base that it was trained on, as in the catalogue.
        target_modules: last parts of its layers' names, sorted.
        quant_base: precision of its base in training; None if unknown.
        answer_models: models of other servers whose answers it was trained on, as in ``provenance.answer_models``.
    """

    id: str
    digest: Sha256
    step: int
    base_model: str
    base_digest: Sha256
    rank: int
    alpha: int
    target_modules: tuple[str, ...]
    quant_base: HeldBase | None
    double_quant: bool = True
    template_arguments: TemplateArguments = {}
    answer_models: tuple[str, ...] = ()

    def factor(self, adapter: AdapterSection) -> float:
        """Return the factor by which the parent's B is multiplied, so that its effect is unchanged under the run's own
        alpha and rank.
        """
        return (self.alpha * adapter.rank) / (self.rank * adapter.alpha)

    def is_exact(self, adapter: AdapterSection) -> bool:
        """Return whether multiplying by :meth:`factor` is exact, which it is if the factor is a power of two."""
        return math.frexp(self.factor(adapter))[0] == 0.5

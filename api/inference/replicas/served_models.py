"""Find the replicas that have a model: those that serve its base, by digest. A base's digest comes from the catalogue,
an adapter's from its manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.base_models.catalog import BaseModelEntry, Catalog
from shared.database.adapters import Adapter, Adapters
from shared.replicas import Fit, ReplicaCapabilities, TrainedWeights

MAX_ADAPTERS = 100_000


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the replicas know it, and the base that a replica must serve to have it.

    Attributes:
        name: name of a base, or id of an adapter.
        base: name of the base; a base's own name.
        base_digest: digest of the base (`BaseModelEntry.digest`); empty: unknown, so every replica may have the model.
        template_arguments: template arguments of its chats, unless a request overrides them.
        trained: the weights that an adapter was trained on; None: unknown, or the model is a base.
    """

    name: str
    base: str = ""
    base_digest: str = ""
    template_arguments: Mapping[str, Any] = field(default_factory=dict, compare=False)
    trained: TrainedWeights | None = None

    def is_served_by(self, capabilities: ReplicaCapabilities) -> bool:
        """Return whether a replica with these capabilities has the model; see :meth:`fit_on`."""
        return self.fit_on(capabilities) is not Fit.NONE

    def fit_on(self, capabilities: ReplicaCapabilities) -> Fit:
        """Return how well a replica's weights fit the model.

        An adapter fits its base, and the base's twin unless it was trained on the unquantised base. A base fits only
        where it is served itself: its twin has another name.
        """
        if not self.base_digest:
            return Fit.EXACT
        if self.name == self.base:
            is_served = (capabilities.base, capabilities.served_digest) == (self.name, self.base_digest)
            return Fit.EXACT if is_served else Fit.NONE
        return capabilities.fit_of(self.trained) if capabilities.adapters_digest == self.base_digest else Fit.NONE


class ServedModels:
    """The models whose bases this process knows. Neither a base's digest nor an adapter's base ever changes under its
    name.
    """

    def __init__(self) -> None:
        self._catalog: Catalog | None = None
        self._bases: dict[str, ServedModel] = {}
        self._merged: frozenset[str] = frozenset()
        self._adapters: dict[str, ServedModel] = {}

    def set_bases(self, catalog: Catalog) -> None:
        """Take the bases from the current catalogue; does nothing if the catalogue has not changed."""
        if catalog is not self._catalog:
            self._bases = {base.name: served_base(base) for base in catalog.bases}
            self._merged = frozenset(base.name for base in catalog.bases if base.merged_from)
            self._catalog = catalog

    def learn(self, ids: Iterable[str], adapters: Adapters) -> None:
        """Look up the bases of adapters that are not known yet; one that is not found stays unknown."""
        if unknown := [adapter_id for adapter_id in ids if adapter_id not in self._adapters]:
            served = {adapter.id: served_adapter(adapter) for adapter in adapters.with_ids(unknown)}
            if len(self._adapters) >= MAX_ADAPTERS:
                self._adapters.clear()
            self._adapters.update(served)

    def is_base(self, name: str) -> bool:
        """Return whether the catalogue had a base of this name."""
        return name in self._bases

    def merged_digest(self, name: str) -> str | None:
        """Return the digest of a base that is a merged model; None if it is not one."""
        return self._bases[name].base_digest if name in self._merged else None

    def of(self, name: str) -> ServedModel:
        """Return the model for a base's name or an adapter's id."""
        return self._bases.get(name) or self._adapters.get(name) or ServedModel(name)


def served_base(base: BaseModelEntry) -> ServedModel:
    """Return a base as the replicas know it; only a merged model has template arguments, those of its adapter."""
    return ServedModel(base.name, base.name, base.digest, base.template_arguments)


def served_adapter(adapter: Adapter) -> ServedModel:
    """Return an adapter as the replicas know it."""
    trained = TrainedWeights.of(adapter.manifest)
    return ServedModel(adapter.id, adapter.base_model, adapter.base_digest, adapter.template_arguments, trained)

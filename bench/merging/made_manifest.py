"""The manifest of an adapter that was generated, not trained: the fields that a merge reads are valid, its digests are
zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.artifacts.manifests import CONFIG_NAME, WEIGHTS_NAME, AdapterManifest, ManifestQuant
from shared.contract.choices import AdapterMethod, BaseQuant

ZERO = "0" * 64


def made_manifest(base_keys: Sequence[str], *, vocab: int, d_model: int, rank: int, alpha: int) -> AdapterManifest:
    """Return the manifest of an adapter for these base tensors; the logical names are the tensors' own names."""
    return AdapterManifest(
        adapter_method=AdapterMethod.QLORA,
        quant=ManifestQuant(base_quant=BaseQuant.NF4),
        base_key_map={key: key for key in base_keys},
        layer_order=list(base_keys),
        vocab=vocab,
        d_model=d_model,
        rank=rank,
        alpha=alpha,
        base_model="made",
        name="made",
        base_digests={"config.json": ZERO},
        contract_digest=ZERO,
        template_digest=ZERO,
        step=1,
        files={WEIGHTS_NAME: ZERO, CONFIG_NAME: ZERO},
    )

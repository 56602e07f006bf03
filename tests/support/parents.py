"""Manifests of adapters from which a run can continue, and such adapters in a database."""

from __future__ import annotations

import hashlib
from typing import Any

from shared.artifacts.manifests import CONFIG_NAME, WEIGHTS_NAME, AdapterManifest
from shared.base_models.catalog import BaseModelEntry
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.records import Kind
from shared.database.tenancy import SHARED
from tests.support.builders import claimed, new_adapter

MODULES = ("q_proj", "v_proj")


def manifest_of(base: BaseModelEntry, *, modules: tuple[str, ...] = MODULES, **changes: Any) -> AdapterManifest:
    """A manifest of an adapter for a base: rank 8, alpha 16, over NF4."""
    keys = {f"l0.{module}": f"model.layers.0.self_attn.{module}.weight" for module in modules}
    fields = {
        "adapter_method": "qlora",
        "quant": {"base_quant": "nf4", "double_quant": True},
        "base_key_map": keys,
        "layer_order": list(keys),
        "vocab": 300,
        "d_model": 32,
        "rank": 8,
        "alpha": 16,
        "base_model": base.name,
        "name": "first",
        "base_digests": base.digests,
        "contract_digest": "c" * 64,
        "template_digest": "d" * 64,
        "step": 7,
        "files": dict.fromkeys((WEIGHTS_NAME, CONFIG_NAME), "e" * 64),
    }
    return AdapterManifest.model_validate(fields | changes)


def add_adapter(database: Database, manifest: AdapterManifest, tenant: str = SHARED, **changes: Any) -> str:
    """Store an adapter with a manifest, as a finished job leaves it; return its id."""
    leases = Leases(database, 60)
    lease = claimed(Jobs(database, tenant), leases, kind=Kind.IMPORT)
    fields = {"digest": manifest.digest, "base_model": manifest.base_model, "step": manifest.step}
    fields["manifest"] = manifest.model_dump(mode="json", exclude_none=True)
    leases.finish(lease, {}, adapters=[new_adapter(manifest.adapter_id, **fields | changes)])
    return manifest.adapter_id


def another(manifest: AdapterManifest, text: str) -> AdapterManifest:
    """The same adapter with different weights."""
    other = hashlib.sha256(text.encode()).hexdigest()
    return manifest.model_copy(update={"files": {**manifest.files, WEIGHTS_NAME: other}})

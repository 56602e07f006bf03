"""A contract's sections with the values that its run used. The values differ if the run itself limits a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.artifacts.manifests import AdapterManifest
from shared.contract.choices import BaseQuant, PreferenceLoss
from shared.contract.plan import warmup_steps

Sections = dict[str, Any]


def used_values(contract: Mapping[str, Any], *, steps: int, planned: int) -> Sections:
    """Return a contract with the warm-up that was used, the epochs that were made, and without options that had no effect.

    Args:
        contract: sections of the contract in their JSON form.
        steps: optimizer steps that the adapter was trained for.
        planned: optimizer steps of the whole run.
    """
    sections: Sections = {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in contract.items()
    }
    exec_, quant = sections.get("exec", {}), sections.get("quant", {})
    if (configured := exec_.get("warmup_steps")) is not None:
        exec_["warmup_steps"] = warmup_steps(configured, planned)
    if "epochs" in exec_ and steps < planned:
        exec_["epochs"] = f"{exec_['epochs']} planned; {steps} of {planned} steps were made"
    if quant.get("base") == BaseQuant.NONE:
        quant.pop("double_quant", None)
    return sections


def trained_how(manifest: AdapterManifest) -> str:
    """Return how an adapter was trained, for a sentence about it."""
    if manifest.preference is None:
        return "trained"
    loss, beta = manifest.preference.loss, f"beta {manifest.preference.beta:g}"
    settings = f"KTO, {beta}" if loss is PreferenceLoss.KTO else f"DPO, {loss}, {beta}"
    return f"tuned by preference ({settings}) from its {manifest.preference.reference}"

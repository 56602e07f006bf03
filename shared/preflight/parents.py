"""Rules for a run that continues from an adapter: values that it takes from its parent, and what is refused. Pure."""

from __future__ import annotations

from typing import Any

from shared.artifacts.manifests import AdapterManifest
from shared.base_models.catalog import BaseModelEntry
from shared.base_models.config import ModelConfig
from shared.base_models.tensors import lora_modules
from shared.contract.choices import BaseQuant
from shared.contract.contracts import FineTuneContract
from shared.contract.parent import PlannedParent
from shared.contract.sections import MAX_ALPHA, MAX_ANSWER_MODELS
from shared.errors import Code, ContractRejected
from shared.hashing import digest_json

FIELD = "adapter.continue_from"
ANSWER_MODELS = "provenance.answer_models"


def planned_parent(manifest: AdapterManifest) -> PlannedParent:
    """Return an adapter as the parent of a run."""
    return PlannedParent(
        id=manifest.adapter_id,
        digest=manifest.digest,
        step=manifest.step,
        base_model=manifest.base_model,
        base_digest=digest_json(manifest.base_digests),
        rank=manifest.rank,
        alpha=manifest.alpha,
        target_modules=tuple(sorted(set(map(_last_part, manifest.base_key_map.values())))),
        # An import without a known precision says "none" too.
        quant_base=manifest.quant.base_quant if manifest.precision else None,
        double_quant=manifest.quant.double_quant,
        template_arguments=manifest.template_arguments or {},
        answer_models=(manifest.provenance.answer_models if manifest.provenance else None) or (),
    )


def check_base(contract: FineTuneContract, parent: PlannedParent | None, base: BaseModelEntry) -> None:
    """Refuse a parent that is missing, or that belongs to another base.

    Raises:
        ContractRejected: ``CONTINUE_BASE_MISMATCH``; ``CONTRACT_UNSUPPORTED``: the adapter has not been looked up.
    """
    name = contract.adapter.continue_from
    if name is not None and parent is None:
        raise ContractRejected(
            Code.CONTRACT_UNSUPPORTED,
            f"{FIELD} is {name!r}, which is looked up only when a job is submitted.",
            remedy="Submit the job with `mens train`, or leave the field out.",
            param=FIELD,
        )
    if parent is not None and parent.base_digest != base.digest:
        raise ContractRejected(
            Code.CONTINUE_BASE_MISMATCH,
            f"{parent.id} was trained on {parent.base_model} with the digest {parent.base_digest[:12]}; the job's "
            f"base is {base.name}"
            f" with the digest {base.digest[:12]}.",
            remedy=f"Leave the base out to tune {parent.base_model}, or continue from an adapter of {base.name}.",
            param=FIELD,
        )


def inherited_values(contract: FineTuneContract, parent: PlannedParent | None, config: ModelConfig) -> dict[str, Any]:
    """Return the parent's values by field path, for fields that the contract leaves open."""
    if parent is None:
        return {}
    rank = contract.adapter.rank if "rank" in contract.adapter.model_fields_set else parent.rank
    alpha = min(max(1, round(rank * parent.alpha / parent.rank)), MAX_ALPHA)
    values: dict[str, Any] = {"adapter.rank": parent.rank, "adapter.alpha": alpha}
    # If the parent adapts every linear layer, the field keeps its default, which means all of them.
    if set(parent.target_modules) != _modules(config, None):
        values["adapter.target_modules"] = list(parent.target_modules)
    if parent.quant_base is BaseQuant.NF4 and not parent.double_quant:
        values["quant.double_quant"] = False
    if parent.template_arguments:
        values["data.template_arguments"] = dict(parent.template_arguments)
    return values


def with_answer_models(contract: FineTuneContract, parent: PlannedParent | None) -> FineTuneContract:
    """Return the contract with the models whose answers the parent was trained on, in addition to its own; the same object if it has them.

    If they do not fit in the list, one entry refers to the parent's manifest instead.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``: that entry does not fit either.
    """
    stated = contract.provenance.answer_models or ()
    if parent is None or set(parent.answer_models) <= set(stated):
        return contract
    models = {*stated, *parent.answer_models}
    if len(models) > MAX_ANSWER_MODELS:
        models = {*stated, f"{len(parent.answer_models)} models that the manifest of {parent.id} names"}
    if len(models) > MAX_ANSWER_MODELS:
        raise ContractRejected(
            Code.CONTRACT_INVALID,
            f"{ANSWER_MODELS} has {len(stated)} entries, which is the limit, but none for the models of {parent.id}.",
            remedy="Name several models in one entry.",
            param=ANSWER_MODELS,
        )
    provenance = contract.provenance.model_copy(update={"answer_models": tuple(sorted(models))})
    return contract.model_copy(update={"provenance": provenance})


def check_shape(contract: FineTuneContract, parent: PlannedParent | None, config: ModelConfig) -> None:
    """Refuse a run whose adapter is too small for the weights of its parent.

    Args:
        contract: the resolved contract.

    Raises:
        ContractRejected: ``CONTINUE_SHAPE_UNSUPPORTED``.
    """
    if parent is None:
        return
    rank = contract.adapter.rank
    if rank < parent.rank:
        raise _too_small(
            "adapter.rank",
            f"adapter.rank is {rank}, and {parent.id} has rank {parent.rank}",
            f"Set adapter.rank to {parent.rank} or more, or leave it out.",
        )
    if missing := sorted(set(parent.target_modules) - _modules(config, contract.adapter.target_modules)):
        raise _too_small(
            "adapter.target_modules",
            f"adapter.target_modules leaves out {', '.join(missing)}, which {parent.id} has trained",
            "Name them too, or leave adapter.target_modules out.",
        )


def describe_differences(contract: FineTuneContract, parent: PlannedParent | None) -> list[str]:
    """Return notes on how a run's start, or its base, differs from its parent's."""
    notes = []
    if parent is not None and not parent.is_exact(contract.adapter):
        notes.append(
            f"alpha / rank is {parent.alpha}/{parent.rank} in {parent.id} and "
            f"{contract.adapter.alpha}/{contract.adapter.rank} in this"
            " run: its weights are scaled to mean the same, with one rounding."
        )
    if parent is not None and parent.quant_base not in (None, contract.quant.base):
        notes.append(
            f"{parent.id} was trained with quant.base {parent.quant_base}, and this run holds its base in "
            f"{contract.quant.base}: its"
            " first answers differ a little from the parent's."
        )
    return notes


def _too_small(param: str, message: str, remedy: str) -> ContractRejected:
    return ContractRejected(Code.CONTINUE_SHAPE_UNSUPPORTED, f"{message}.", remedy=remedy, param=param)


def _modules(config: ModelConfig, names: tuple[str, ...] | None) -> set[str]:
    return {name.rpartition(".")[2] for name in lora_modules(config, names)}


def _last_part(base_key: str) -> str:
    return base_key.removesuffix(".weight").rpartition(".")[2]

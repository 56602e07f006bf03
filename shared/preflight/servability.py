"""Refuse contracts whose adapter could be trained but not served: at submission, before a GPU-hour is spent. Pure.

The facts about the serving engine are vLLM 0.32's: which architectures take LoRA, and for which of them ``lm_head``
too.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.base_models.config import ModelConfig
from shared.base_models.tensors import HEAD, lora_modules
from shared.contract.base_quant import pair_of
from shared.contract.choices import BaseQuant
from shared.contract.contracts import FineTuneContract
from shared.errors import Code, ContractRejected
from shared.preflight.types import ServingLimits
from shared.replicas import ServedBaseName, describe_unserved, rank_remedy, serving_remedy


def check_servable(
    contract: FineTuneContract, config: ModelConfig, limits: ServingLimits, *, base_digest: str | None = None
) -> None:
    """Refuse a contract whose adapter could be trained but not served; an adapter that is not published may have any
    form.

    Args:
        base_digest: digest of the base that the contract names; compared only when both sides know theirs.

    Raises:
        ContractRejected: ``NOT_SERVABLE_FAMILY``, ``_BASE``, ``_RANK`` or ``_HEAD``.
    """
    if not contract.artifact.publish:
        return
    if config.family not in limits.families:
        raise ContractRejected(
            Code.NOT_SERVABLE_FAMILY,
            f"The base is a {config.family} model; the serving engine supports adapters for"
            f" {', '.join(sorted(limits.families))}.",
            remedy="Choose another base, or set artifact.publish to false to train without serving.",
            param="model.hf_repo",
        )
    if limits.base_digest and base_digest and limits.base_digest != base_digest:
        raise base_not_servable(contract.model.hf_repo, limits.bases)
    rank = contract.adapter.rank
    if rank > limits.max_lora_rank:
        raise rank_not_servable(rank, limits.max_lora_rank)
    for target in contract.adapter.target_modules or ():
        _check_target(target, config, limits)


def base_not_servable(base: str, served: Iterable[ServedBaseName]) -> ContractRejected:
    """Return the refusal of a job whose base no replica serves; ``served`` are the served bases."""
    return ContractRejected(
        Code.NOT_SERVABLE_BASE,
        describe_unserved(base, served),
        remedy=f"{serving_remedy(base, served)}; or train without publishing (`--no-publish`, artifact.publish = false).",
        param="model.hf_repo",
    )


def rank_not_servable(rank: int, most: int) -> ContractRejected:
    """Return the refusal of a job whose adapter no replica could load."""
    return ContractRejected(
        Code.NOT_SERVABLE_RANK,
        f"adapter.rank is {rank}; the serving tier supports ranks up to {most}.",
        remedy=f"Set adapter.rank to {most} (`--rank {most}`), or {rank_remedy(rank)}.",
        param="adapter.rank",
        details={"rank": rank, "max_lora_rank": most},
    )


def rows_too_long(seq_len: int, positions: int) -> ContractRejected:
    """Return the refusal of a job whose rows may have more tokens than the base has positions."""
    return ContractRejected(
        Code.SEQ_LEN_TOO_LARGE,
        f"exec.seq_len is {seq_len}; the base model has {positions} positions.",
        remedy=f"Set exec.seq_len to {positions} or less.",
        param="exec.seq_len",
    )


def check_served_weights(contract: FineTuneContract, limits: ServingLimits) -> None:
    """Refuse an adapter of the unquantised base if only the base's twin is served, which is a different base for it.

    Args:
        contract: its precision is decided.

    Raises:
        ContractRejected: ``NOT_SERVABLE_BASE``.
    """
    if not contract.artifact.publish or not limits.only_twins or pair_of(contract)[1] is not BaseQuant.NONE:
        return
    base = contract.model.hf_repo
    raise ContractRejected(
        Code.NOT_SERVABLE_BASE,
        f"Only the twin of {base} is served, whose weights are rounded to NF4; an adapter of the unquantised base needs the original.",
        remedy=f"Train over NF4 (quant.base = nf4, `--quant nf4`), serve the original (`mens up --base {base} --weights original`),"
        " or set artifact.publish to false.",
        param="quant.base",
    )


def serving_notes(contract: FineTuneContract, limits: ServingLimits) -> list[str]:
    """Return notes on facts that are not faults: rows longer than the served context, and a base served in a
    precision other than that of its training.
    """
    if not contract.artifact.publish:
        return []
    notes = []
    length, served = contract.exec.seq_len, limits.max_model_len
    if served is not None and length > served:
        notes.append(
            f"exec.seq_len is {length}, but the serving tier accepts {served} tokens; longer chats are refused there."
        )
    if limits.only_originals and pair_of(contract)[1] is BaseQuant.NF4:
        notes.append(
            "The adapter is trained over NF4 and served over the original weights, where it loses a part of its training"
            f" (base shift). Train over 16 bit (quant.base = none), or serve the twin (`mens up --base {contract.model.hf_repo} --weights twin`)."
        )
    return notes


def _check_target(target: str, config: ModelConfig, limits: ServingLimits) -> None:
    """Refuse a head in ``adapter.target_modules`` that cannot be adapted."""
    if HEAD not in lora_modules(config, [target]):
        return
    if config.tied:
        reason = "this base ties its lm_head to the embedding, so an adapter of it would not match any stored tensor"
    elif not limits.head_families:
        reason = "a replica on a GPU does not serve adapters of it"
    elif config.family not in limits.head_families:
        reason = f"the serving engine cannot adapt the lm_head of a {config.family} model"
    else:
        return
    raise ContractRejected(
        Code.NOT_SERVABLE_HEAD,
        f"adapter.target_modules names lm_head, but {reason}.",
        remedy="Leave lm_head out; every other linear layer can be tuned.",
        param="adapter.target_modules",
    )

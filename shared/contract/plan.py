"""From contract to execution plan: pure functions, no I/O.

A plan is a value: complete, JSON, versioned, digested, stored with the job. Contracts that must not run are refused in
`shared/contract/refusals.py`; features that this release's trainer lacks are refused here, before anything is queued,
with the field's path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from shared.base_models.catalog import BaseModelEntry, Sha256
from shared.contract.base_quant import settled
from shared.contract.choices import (
    AdapterMethod,
    AdapterTargets,
    BaseQuant,
    Device,
    MethodType,
    OptimizerExperiment,
    PreferenceLoss,
    ReferencePolicy,
    TokenizerMode,
)
from shared.contract.contracts import RATED_FIELDS, FineTuneContract, ImportContract, MergeContract, contract_digest
from shared.contract.epochs import Histogram, rows_per_epoch
from shared.contract.parent import PlannedParent
from shared.contract.refusals import UNKNOWN, RefusalContext, check_refusals
from shared.contract.sections import ChatmlSection, PreferenceSection
from shared.contract.values import ContractValue, FrozenDict, Name
from shared.errors import Code, ContractRejected
from shared.hashing import digest_json

MIN_VALIDATION_ROWS = 10
SMALL_DATASET_ROWS = 20
MAX_RATED_WEIGHT = 100.0
"""Largest weight of a kind of rated answers."""
PAIR_LOSSES = (PreferenceLoss.SIGMOID, PreferenceLoss.SIGMOID_NORM, PreferenceLoss.IPO)
RATED_LOSSES = (PreferenceLoss.SIGMOID, PreferenceLoss.KTO)
"""The first is the default, which a contract has if it names no loss; then KTO uses its own."""


class DataFile(ContractValue):
    """An input file by content: what was hashed at upload and counted at submission."""

    file_id: str
    sha256: Sha256
    bytes: int
    rows: int = Field(description="Rows that pass the filters.")


def _freeze(digests: dict[str, Sha256]) -> FrozenDict[Sha256]:
    # A function, because pydantic reads a validator's signature, and from Python 3.12 on a dictionary class has one
    # that accepts anything.
    return FrozenDict(digests)


class PlannedBase(ContractValue):
    """The base model by content."""

    name: str
    digests: Annotated[dict[str, Sha256], AfterValidator(_freeze)]

    @property
    def digest(self) -> str:
        """One digest for the whole base, equal to that of the catalogue's entry."""
        return digest_json(self.digests)


class ExecutionPlan(ContractValue):
    """Everything that a fine-tune attempt does, fully decided. Equal plans train equal adapters.

    A field that a release adds gets a default with the meaning of earlier releases, so that a plan stored by an earlier
    release remains the same plan and keeps its digest.
    """

    version: Literal[1] = 1
    execution_kernel: Literal["qlora", "lora"] = "qlora"
    contract: FineTuneContract
    contract_digest: Sha256
    base: PlannedBase
    train: DataFile
    validation: DataFile | None = Field(description="Null: a split of the training file is used.")
    replay: DataFile | None = Field(None, description="Rows of it are mixed into each epoch.")
    parent: PlannedParent | None = Field(None, description="The adapter that the run starts from; null: a new one.")
    validation_rows: int = Field(description="Rows held out of the training file.")
    optimizer_steps: int = Field(description="Upper bound; rows with nothing supervised are skipped and counted.")
    adapter_name: Name
    candle_proxy_stack_eligible: bool = Field(
        True, description="True if the base's layers can be counted in its weights."
    )
    candle_proxy_stack_complete: bool | None = Field(
        None, description="True if every layer was found; null: not counted."
    )
    candle_proxy_stack_keys_matched: int | None = Field(None, description="Layers whose output projection was found.")
    candle_proxy_stack_keys_expected: int | None = Field(None, description="Layers that the base's config implies.")
    candle_compat_mode: bool = Field(True, description="True for QLoRA, the kernel that the original ran.")
    notes: tuple[str, ...] = Field((), description="Remarks for the operator; none of them stops the job.")

    @model_validator(mode="after")
    def _is_decided(self) -> ExecutionPlan:
        if self.contract.adapter.method is AdapterMethod.AUTO or self.contract.quant.base is BaseQuant.AUTO:
            raise ValueError("adapter.method and quant.base of a plan must be decided")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the plan's canonical JSON, as it was stored: without fields that came later."""
        return digest_json(self.model_dump(mode="json", exclude_unset=True))


class TrainingInputs(ContractValue):
    """One worker's paths of a plan's inputs. Not part of the plan: another machine has other paths."""

    base: str
    train: str
    validation: str | None
    replay: str | None = None
    parent: str | None = None


class TrainingRun(ContractValue):
    """The ``plan.json`` that the trainer reads: ``python -m worker.train plan.json run_dir/``."""

    plan: ExecutionPlan
    inputs: TrainingInputs

    def to_json(self) -> str:
        """Return the file's content; the plan in it is written as it was stored, so that it keeps its digest."""
        return self.model_dump_json(indent=2, exclude_unset=True)


class MergePlan(ContractValue):
    """Everything a merge attempt does."""

    version: Literal[1] = 1
    contract: MergeContract
    adapter_id: str
    adapter_digest: Sha256
    base: PlannedBase


class ImportPlan(ContractValue):
    """Everything an import attempt does. Its digests name the input, so equal plans make equal adapters."""

    version: Literal[1] = 1
    contract: ImportContract
    base: PlannedBase
    weights_sha256: Sha256
    sidecar_sha256: Sha256
    template_sha256: Sha256 | None = None

    @property
    def content_digest(self) -> str:
        """Digest of the import, by content and not by file id: the same files give the same adapter everywhere."""
        # The template only decides whether the adapter is imported.
        content = {"weights": self.weights_sha256, "sidecar": self.sidecar_sha256, "base": self.base.digests}
        arguments = self.contract.template_arguments
        content |= {"template_arguments": dict(arguments)} if arguments else {}
        return digest_json(content | {"name": self.contract.name})


class MergeInputs(ContractValue):
    """One worker's paths of a merge's inputs."""

    base: str
    adapter: str


class MergeRun(ContractValue):
    """The ``plan.json`` of ``python -m worker.merge plan.json run_dir/``."""

    plan: MergePlan
    inputs: MergeInputs


def plan_finetune(
    contract: FineTuneContract,
    base: BaseModelEntry,
    train: DataFile,
    validation: DataFile | None,
    adapter_name: str,
    context: RefusalContext | None = None,
    *,
    replay: DataFile | None = None,
    difficulties: Histogram | None = None,
    parent: PlannedParent | None = None,
) -> ExecutionPlan:
    """Make the execution plan of a contract.

    Args:
        contract: resolved, its presets applied; a precision that is still open is NF4.
        base: the base model by content.
        train: the training file.
        validation: the validation file, if any.
        adapter_name: left part of the adapter's id.
        context: facts about machine and base for the refusals; without it, they only know the number of rows.
        replay: the replay file, if any.
        difficulties: difficulties of the training file's rows, for a curriculum.
        parent: the adapter that the run starts from, if any.

    Raises:
        ContractRejected: a refusal's code, or ``CONTRACT_UNSUPPORTED``; with the field's path.
    """
    facts = context or replace(UNKNOWN, rows=train.rows)
    contract = with_preference(settled(contract))
    notes = check_refusals(contract, facts)
    reject_unsupported(contract, accepted=facts.accepted)
    held_out = 0 if validation else validation_split(train.rows, contract.data.validation_split_ratio)
    if contract.exec.early_stopping_patience and not (validation or held_out):
        raise ContractRejected(
            Code.CONTRACT_UNSUPPORTED,
            f"exec.early_stopping_patience is {contract.exec.early_stopping_patience}, but no row is left to "
            "validate on.",
            remedy="Give a validation file, raise data.validation_split_ratio, or leave the field out.",
            param="exec.early_stopping_patience",
        )
    # By content, never by file id or path: the same data on another installation gives the same digest.
    content = {"train_file": train.sha256, "base": base.digest}
    content |= {"validation_file": validation.sha256} if validation else {}
    content |= {"replay_file": replay.sha256} if replay else {}
    content |= {"parent": parent.digest} if parent else {}
    replayed = replay.rows if replay else 0
    epochs = rows_per_epoch(train.rows - held_out, contract, difficulties=difficulties, replay=replayed)
    stack = facts.proxy_stack
    is_lora = contract.adapter.method is AdapterMethod.LORA
    plan = ExecutionPlan(
        execution_kernel="lora" if is_lora else "qlora",
        contract=contract,
        contract_digest=contract_digest(contract, content),
        base=PlannedBase(name=base.name, digests=base.digests),
        train=train,
        validation=validation,
        replay=replay,
        parent=parent,
        validation_rows=held_out,
        optimizer_steps=planned_steps(epochs, contract),
        adapter_name=adapter_name,
        candle_proxy_stack_complete=None if stack is None else 0 < stack[1] == stack[0],
        candle_proxy_stack_keys_matched=None if stack is None else stack[0],
        candle_proxy_stack_keys_expected=None if stack is None else stack[1],
        candle_compat_mode=not is_lora,
        notes=tuple(notes),
    )
    # Every field is set, as in the stored plan: the digest covers the fields that are set.
    return ExecutionPlan.model_validate(plan.model_dump(mode="json"))


def with_preference(contract: FineTuneContract) -> FineTuneContract:
    """Return the contract with its preference loss and beta decided; the same object where no preference is learnt."""
    section = contract.preference
    if contract.method.type is MethodType.KTO:
        section = section.model_copy(update={"loss": PreferenceLoss.KTO})
    section = section.model_copy(update={"beta": section.strength})
    if not contract.has_preferences or section == contract.preference:
        return contract
    return contract.model_copy(update={"preference": section})


def with_rated_weights(contract: FineTuneContract, good: int, bad: int) -> FineTuneContract:
    """Return the contract with its open weights decided, so that both kinds of answers weigh the same in total.

    If both are open, the more frequent kind gets 1.

    Args:
        good, bad: answers of the training file, each at least one.
    """
    section = contract.preference
    desirable, undesirable = section.desirable_weight, section.undesirable_weight
    if desirable is None and undesirable is None:
        desirable, undesirable = max(1.0, bad / good), max(1.0, good / bad)
    elif desirable is None and undesirable is not None:
        desirable = undesirable * bad / good
    elif desirable is not None and undesirable is None:
        undesirable = desirable * good / bad
    weights = {"desirable_weight": desirable, "undesirable_weight": undesirable}
    bounded = {name: min(MAX_RATED_WEIGHT, float(weight)) for name, weight in weights.items() if weight is not None}
    return contract.model_copy(update={"preference": section.model_copy(update=bounded)})


def validation_split(rows: int, ratio: float) -> int:
    """Return the rows held out for validation: ⌊rows·ratio⌋, and for more than 20 rows at least 10 and at most half of
    them.
    """
    if ratio == 0.0:
        return 0
    held_out = math.floor(rows * ratio)
    if rows > SMALL_DATASET_ROWS:
        held_out = min(max(held_out, MIN_VALIDATION_ROWS), rows // 2)
    return held_out


def optimizer_steps(rows: int, contract: FineTuneContract) -> int:
    """Return the optimizer steps of a run whose epochs all have this many rows."""
    return planned_steps([rows] * contract.exec.epochs, contract)


def planned_steps(epochs: Sequence[int], contract: FineTuneContract) -> int:
    """Return the optimizer steps of a whole run, from the rows of each epoch: the last, incomplete batch of an epoch
    counts as a step.
    """
    # Rounded up per epoch, not over the run: accumulation does not cross an epoch's end.
    rows_per_step = contract.exec.batch_size * contract.exec.grad_accum
    return sum(math.ceil(rows / rows_per_step) for rows in epochs)


def warmup_steps(configured: int, total_steps: int) -> int:
    """Return the effective warm-up: the configured one, but at most 10 % of the run and at least one step."""
    return min(configured, max(1, total_steps // 10))


def reject_unsupported(contract: FineTuneContract, *, accepted: bool = False) -> None:
    """Refuse settings that this release's trainer would not honour.

    Args:
        accepted: see :class:`shared.contract.refusals.RefusalContext`.

    Raises:
        ContractRejected: the first field whose value this release's trainer cannot honour, or that nothing reads.
    """
    refuse_unread(contract)
    allowed: list[tuple[str, Any, Any, str]] = [
        ("adapter.targets", contract.adapter.targets, AdapterTargets.FULL_GRAPH, "the full graph is always trained"),
        ("data.tokenizer_mode", contract.data.tokenizer_mode, TokenizerMode.HF, "the base's own tokenizer is used"),
        ("model.weight_shards", contract.model.weight_shards, None, "the catalogue names the shards"),
        ("model.config_json", contract.model.config_json, None, "the catalogue names the config"),
        ("model.tokenizer_json", contract.model.tokenizer_json, None, "the catalogue names the tokenizer"),
        (
            "exec.resume_from",
            contract.exec.resume_from,
            None,
            (
                "a job resumes from its own checkpoints automatically; to start from another job's adapter, use "
                "adapter.continue_from"
            ),
        ),
        (
            "optimizer.experiment",
            contract.optimizer.experiment,
            OptimizerExperiment.OFF,
            "this release has no experiments",
        ),
        ("chatml", contract.chatml, ChatmlSection(), "the server writes chats with the base's own template"),
        ("reward.hook", contract.reward.hook, None, "nothing is scored in supervised training"),
    ]
    kind = contract.method.type
    if kind is MethodType.REINFORCEMENT:
        allowed.append(("method.type", kind, MethodType.SUPERVISED, "this release trains supervised, dpo and kto"))
    if contract.has_preferences:
        allowed += _not_with_preferences(contract)
    if not accepted:
        claimed = contract.collateral_damage_verified
        allowed.append(("collateral_damage_verified", claimed, False, "this installation has not verified it"))
    if contract.device.device is Device.METAL:
        allowed.append(("device.device", Device.METAL, Device.AUTO, "a worker trains on a CPU or an NVIDIA GPU"))
    for path, value, only, reason in allowed:
        if value != only:
            raise ContractRejected(
                Code.CONTRACT_UNSUPPORTED,
                f"{path} is {_as_json(value)}, but {reason}.",
                remedy=f"Set {path} to {_as_json(only)}, or leave it out.",
                param=path,
            )


def refuse_unread(contract: FineTuneContract) -> None:
    """Refuse a preference section, or a field of it, that the contract's method or loss does not read.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``.
    """
    section, kind = contract.preference, contract.method.type
    if kind is MethodType.SUPERVISED and section != PreferenceSection():
        raise ContractRejected(
            Code.CONTRACT_INVALID,
            f"The preference section is filled in, but method.type is {kind}, which does not read it.",
            remedy="Set method.type to dpo or kto, or leave the preference section out.",
            param="preference",
        )
    if section.loss not in (RATED_LOSSES if kind is MethodType.KTO else PAIR_LOSSES):
        raise ContractRejected(
            Code.CONTRACT_INVALID,
            f"preference.loss is {section.loss}, and method.type is {kind}, which does not have it.",
            remedy="Leave preference.loss out: method.type kto has one loss, which no other method has.",
            param="preference.loss",
        )
    defaults = PreferenceSection()
    unread = ("label_smoothing", "smoothing", "sft_weight") if kind is MethodType.KTO else RATED_FIELDS
    for name in unread:
        if getattr(section, name) != getattr(defaults, name):
            raise ContractRejected(
                Code.CONTRACT_INVALID,
                f"preference.{name} is filled in, but method.type is {kind}, which does not read it.",
                remedy=f"Leave preference.{name} out.",
                param=f"preference.{name}",
            )
    if section.loss is PreferenceLoss.IPO and section.label_smoothing > 0:
        raise ContractRejected(
            Code.CONTRACT_INVALID,
            f"preference.label_smoothing is {section.label_smoothing:g}, but the loss is ipo, which has no label "
            "smoothing.",
            remedy="Set preference.label_smoothing to 0, or preference.loss to sigmoid or sigmoid_norm.",
            param="preference.label_smoothing",
        )


def _not_with_preferences(contract: FineTuneContract) -> list[tuple[str, Any, Any, str]]:
    """Return the fields that a run on pairs or rated answers cannot honour, each with its only value and the reason."""
    reference = contract.preference.reference
    start = ReferencePolicy.PARENT if contract.adapter.continue_from else ReferencePolicy.BASE
    return [
        ("trajectory.enabled", contract.trajectory.enabled, False, "preferences have no weights of their own"),
        ("exec.qlora_ce_last_k", contract.exec.qlora_ce_last_k, 0, "a preference counts the whole answer"),
        ("data.replay_file", contract.data.replay_file, None, "rows of answers cannot be mixed into preferences"),
        ("adapter.dropout", contract.adapter.dropout, 0.0, "the reference and the policy would differ by chance"),
        (
            "preference.reference",
            reference,
            start if reference is start else ReferencePolicy.AUTO,
            f"the run starts from the {start}",
        ),
    ]


def _as_json(value: Any) -> str:
    """Return a field's value as in the contract's JSON."""
    return value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)

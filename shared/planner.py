"""From contract to execution plan: pure functions, no I/O.

A plan is a value: complete, JSON, versioned, digested, stored with the job. What the engine of this release cannot do is
refused here, before anything is queued, with the field's path.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.catalog import BaseModelEntry, Sha256
from shared.contract import (
    AdapterMethod,
    AdapterTargets,
    BaseQuant,
    DeploymentTarget,
    FineTuneContract,
    MergeContract,
    Name,
    TokenizerMode,
    contract_digest,
)
from shared.digest import digest_json
from shared.errors import Code, ContractRejected

MIN_VALIDATION_ROWS = 10
SMALL_DATASET_ROWS = 20


class PlanPart(BaseModel):
    """Frozen, closed part of a plan."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataFile(PlanPart):
    """An input file by content: what was hashed at upload and counted at submission."""

    file_id: str
    sha256: Sha256
    bytes: int
    rows: int = Field(description="Rows that pass the filters.")


class PlannedBase(PlanPart):
    """The base model by content."""

    name: str
    digests: dict[str, Sha256]


class ExecutionPlan(PlanPart):
    """Everything a fine-tune attempt does, decided. Equal plans train equal adapters."""

    version: Literal[1] = 1
    execution_kernel: Literal["qlora"] = "qlora"
    contract: FineTuneContract
    contract_digest: Sha256
    base: PlannedBase
    train: DataFile
    validation: DataFile | None = Field(description="Null: a split of the training file is used.")
    validation_rows: int = Field(description="Rows held out of the training file.")
    optimizer_steps: int = Field(description="Upper bound; rows with nothing supervised are skipped and counted.")
    adapter_name: Name

    @property
    def digest(self) -> str:
        """SHA-256 of the plan's canonical JSON."""
        return digest_json(self.model_dump(mode="json"))


class TrainingInputs(PlanPart):
    """Where one worker found a plan's inputs. Not part of the plan: another machine has other paths."""

    base: str
    train: str
    validation: str | None


class TrainingRun(PlanPart):
    """The ``plan.json`` that the engine reads: ``python -m worker.train plan.json run_dir/``."""

    plan: ExecutionPlan
    inputs: TrainingInputs


class MergePlan(PlanPart):
    """Everything a merge attempt does."""

    version: Literal[1] = 1
    contract: MergeContract
    adapter_id: str
    adapter_digest: Sha256
    base: PlannedBase


class MergeInputs(PlanPart):
    """Where one worker found a merge's inputs."""

    base: str
    adapter: str


class MergeRun(PlanPart):
    """The ``plan.json`` of ``python -m worker.merge plan.json run_dir/``."""

    plan: MergePlan
    inputs: MergeInputs


def plan_finetune(
    contract: FineTuneContract, base: BaseModelEntry, train: DataFile, validation: DataFile | None, adapter_name: str
) -> ExecutionPlan:
    """Decide how a contract is run.

    Raises:
        ContractRejected: ``CONTRACT_UNSUPPORTED`` with the field's path.
    """
    reject_unsupported(contract)
    held_out = 0 if validation else validation_split(train.rows, contract.data.validation_split_ratio)
    content = {"train_file": train.sha256, "base": base.digest}
    if validation:
        content["validation_file"] = validation.sha256
    return ExecutionPlan(
        contract=contract,
        contract_digest=contract_digest(contract, content),
        base=PlannedBase(name=base.name, digests=base.digests),
        train=train,
        validation=validation,
        validation_rows=held_out,
        optimizer_steps=optimizer_steps(train.rows - held_out, contract),
        adapter_name=adapter_name,
    )


def validation_split(rows: int, ratio: float) -> int:
    """Rows held out for validation: ⌊rows·ratio⌋, and for more than 20 rows at least 10 and at most half of them."""
    if ratio == 0.0:
        return 0
    held_out = math.floor(rows * ratio)
    if rows > SMALL_DATASET_ROWS:
        held_out = min(max(held_out, MIN_VALIDATION_ROWS), rows // 2)
    return held_out


def optimizer_steps(rows: int, contract: FineTuneContract) -> int:
    """Optimizer steps of a whole run: an epoch's last, incomplete window steps too."""
    micro_batches = math.ceil(rows / contract.exec.batch_size)
    return math.ceil(micro_batches / contract.exec.grad_accum) * contract.exec.epochs


def warmup_steps(configured: int, total_steps: int) -> int:
    """Warm-up that is used: the configured one, but at most 10 % of the run and at least one step."""
    return min(configured, max(1, total_steps // 10))


def reject_unsupported(contract: FineTuneContract) -> None:
    """Raises:
    ContractRejected: the first field whose value this release's engine cannot honour.
    """
    exec_, adapter = contract.exec, contract.adapter
    allowed: list[tuple[str, Any, Any, str]] = [
        ("adapter.method", adapter.method, AdapterMethod.QLORA, "QLoRA is the one training method"),
        ("quant.base", contract.quant.base, BaseQuant.NF4, "the frozen base is held in NF4"),
        ("adapter.targets", adapter.targets, AdapterTargets.FULL_GRAPH, "the full graph is always trained"),
        ("data.tokenizer_mode", contract.data.tokenizer_mode, TokenizerMode.HF, "the base's own tokenizer is used"),
        ("data.context_filter", contract.data.context_filter, None, "filters come with a later release"),
        ("model.weight_shards", contract.model.weight_shards, None, "the catalogue names the shards"),
        ("model.config_json", contract.model.config_json, None, "the catalogue names the config"),
        ("model.tokenizer_json", contract.model.tokenizer_json, None, "the catalogue names the tokenizer"),
        ("exec.resume_from", exec_.resume_from, None, "a job resumes from its own checkpoints by itself"),
        ("exec.curriculum_schedule", exec_.curriculum_schedule, None, "curricula come with a later release"),
        ("exec.qlora_lm_head_only", exec_.qlora_lm_head_only, False, "the full graph is always trained"),
        ("exec.qlora_proxy_max_layers", exec_.qlora_proxy_max_layers, None, "every layer is always trained"),
        ("exec.max_vram_fraction", exec_.max_vram_fraction, None, "memory limits come with a later release"),
        ("exec.qlora_max_skip_rate", exec_.qlora_max_skip_rate, None, "skip limits come with a later release"),
        (
            "artifact.deployment_target",
            contract.artifact.deployment_target,
            DeploymentTarget.WORKSTATION,
            "no on-device runtime is built",
        ),
    ]
    for path, value, only, reason in allowed:
        if value != only:
            raise ContractRejected(
                Code.CONTRACT_UNSUPPORTED,
                f"{path} is {_shown(value)}, but {reason}.",
                remedy=f"Set {path} to {_shown(only)}, or leave it out.",
                param=path,
            )


def _shown(value: Any) -> str:
    """A field's value as the contract's JSON writes it."""
    return value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)

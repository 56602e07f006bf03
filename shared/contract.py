"""The fine-tune contract: everything one training job may ask for, in seven sections.

Names and nesting are those of the original system's contract (model, provenance, data, adapter, quant, exec, artifact)
with its flat extras in proper sections. Shape and ranges are checked here; whether a well-formed contract can be run is
the planner's business (`shared/planner.py`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StringConstraints

from shared.digest import digest_json

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
"""A name people choose (alias, suffix, base model): safe in a URL, a file name and a log line."""


class Section(BaseModel):
    """A part of the contract: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class TokenizerMode(StrEnum):
    HF = "hf"
    VOX = "vox"


class AdapterMethod(StrEnum):
    LORA = "lora"
    QLORA = "qlora"


class AdapterTargets(StrEnum):
    FULL_GRAPH = "full_graph"
    LM_HEAD_PROXY = "lm_head_proxy"


class BaseQuant(StrEnum):
    NONE = "none"
    NF4 = "nf4"


class DeploymentTarget(StrEnum):
    WORKSTATION = "workstation"
    MOBILE_EDGE = "mobile_edge"


class ModelSection(Section):
    """Which base model is tuned."""

    hf_repo: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        validation_alias=AliasChoices("hf_repo", "name"), description="Name of the base model in the catalogue."
    )
    weight_shards: list[str] | None = Field(None, description="Explicit shards; the catalogue's when null.")
    config_json: str | None = None
    tokenizer_json: str | None = None


class ProvenanceSection(Section):
    """Lineage and licence of the base, carried into the manifest and the model card."""

    base_family: str | None = None
    upstream_model_id: str | None = None
    license_class: str | None = None
    attribution_required: bool = False


class ContextFilter(Section):
    """Which rows are trained on, by their own metadata."""

    categories: list[str] | None = None
    difficulty_min: Annotated[int, Field(ge=1, le=10)] | None = None
    difficulty_max: Annotated[int, Field(ge=1, le=10)] | None = None
    rating_min: Annotated[int, Field(ge=1, le=5)] | None = None


class DataSection(Section):
    """What it is tuned on."""

    train_file: str = Field(min_length=1, description="Id of an uploaded JSONL file.")
    validation_file: str | None = Field(None, description="Id of an uploaded JSONL file; else a split of the first.")
    tokenizer_mode: TokenizerMode = TokenizerMode.HF
    min_rating: int = Field(3, ge=0, le=5, description="Rows rated lower are left out; 0 keeps all; unrated rows stay.")
    context_filter: ContextFilter | None = None
    validation_split_ratio: float = Field(0.05, ge=0.0, le=0.5, description="Used when there is no validation file.")


class AdapterSection(Section):
    """The shape of the adapter."""

    method: AdapterMethod = AdapterMethod.QLORA
    rank: int = Field(16, ge=1, le=512, validation_alias=AliasChoices("rank", "r"))
    alpha: int = Field(32, ge=1, le=4096, validation_alias=AliasChoices("alpha", "lora_alpha"))
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    targets: AdapterTargets = AdapterTargets.FULL_GRAPH
    target_modules: list[str] | None = Field(
        None, min_length=1, description="Module names, e.g. q_proj; every linear layer but the head when null."
    )


class QuantSection(Section):
    """How the frozen base is held in memory."""

    base: BaseQuant = BaseQuant.NF4
    double_quant: bool = True


class CurriculumSchedule(Section):
    """Highest difficulty admitted per epoch."""

    epoch_1_max_difficulty: Annotated[int, Field(ge=1, le=10)] | None = None
    epoch_2_max_difficulty: Annotated[int, Field(ge=1, le=10)] | None = None
    epoch_3_max_difficulty: Annotated[int, Field(ge=1, le=10)] | None = None
    curriculum_phases: list[str] | None = None


class ExecSection(Section):
    """How it is trained."""

    epochs: int = Field(3, ge=1, le=1000)
    seq_len: int = Field(256, ge=8, le=1 << 20, description="Tokens per row; longer rows lose their beginning.")
    batch_size: int = Field(4, ge=1, le=4096, description="Rows per micro-batch.")
    grad_accum: int = Field(4, ge=1, le=4096, description="Micro-batches per optimizer step.")
    learning_rate: float = Field(2e-4, gt=0.0, le=1.0)
    warmup_steps: int = Field(100, ge=0, le=1_000_000, description="Optimizer steps; at most 10 % of them are used.")
    weight_decay: float = Field(0.01, ge=0.0, le=1.0)
    max_grad_norm: float = Field(1.0, gt=0.0, le=1e6)
    seed: int = Field(42, ge=0, le=2**31 - 1)
    checkpoint_every: int = Field(500, ge=1, le=10_000_000, description="Optimizer steps between checkpoints.")
    resume_from: str | None = None
    max_vram_fraction: float | None = Field(None, gt=0.0, le=1.0)
    adapter_tag: Name | None = None
    qlora_require_full_proxy_stack: bool = False
    qlora_max_skip_rate: float | None = Field(None, ge=0.0, le=1.0)
    qlora_lm_head_only: bool = False
    qlora_proxy_max_layers: int | None = Field(None, ge=0)
    qlora_ce_last_k: int = Field(0, ge=0, le=64, description="Loss on the last K assistant tokens; 0 means all.")
    curriculum_schedule: CurriculumSchedule | None = None


class ArtifactSection(Section):
    """What comes out."""

    adapter_schema_version: int = Field(3, ge=3, le=3)
    allow_placeholder_attention_merge: bool = True
    deployment_target: DeploymentTarget = DeploymentTarget.WORKSTATION
    publish: bool = Field(True, description="False: train and store only, do not prove it on the serving tier.")
    alias: Name | None = Field(None, description="Alias that is moved to the adapter when the job succeeds.")


class FineTuneContract(Section):
    """One training job, complete. Two equal contracts have the same digest on every machine."""

    model: ModelSection
    provenance: ProvenanceSection = ProvenanceSection()
    data: DataSection
    adapter: AdapterSection = AdapterSection()
    quant: QuantSection = QuantSection()
    exec: ExecSection = ExecSection()
    artifact: ArtifactSection = ArtifactSection()
    collateral_damage_verified: bool = False


def contract_digest(contract: FineTuneContract, content: dict[str, str]) -> str:
    """SHA-256 over every knob of the contract plus the hashes of what its names point at.

    Args:
        contract: the contract; shards count as a set, so their order does not matter.
        content: content hashes by role, e.g. ``{"train_file": sha256, "base": base digest}``. They stand for the file
            ids, which differ from one installation to the next.
    """
    fields: dict[str, Any] = contract.model_dump(mode="json", exclude={"data": {"train_file", "validation_file"}})
    fields["model"]["weight_shards"] = sorted(fields["model"]["weight_shards"] or [])
    return digest_json({"contract": fields, "content": content})


class MergeContract(Section):
    """A merge job: an adapter folded into its full-precision base, as a complete model folder."""

    adapter: str = Field(min_length=1, description="Adapter id, or an alias of one.")
    dtype: Annotated[str, StringConstraints(pattern=r"^(float32|bfloat16|float16)$")] | None = Field(
        None, description="Stored dtype of the merged weights; the base's own when null."
    )

"""The sections of a fine-tune contract: model, data, adapter, execution and so on, each with its fields and their ranges.

Names and nesting are those of the original system's contract (model, provenance, data, adapter, quant, exec, artifact);
its flat extras have sections of their own (device, trajectory, optimizer, curriculum, chatml, reward). Shape and ranges
are checked here; which well-formed contracts may run is decided in `shared/contract/refusals.py` and
`shared/contract/plan.py`.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    StrictBool,
    StringConstraints,
    model_validator,
)

from shared.contract.choices import (
    BACKENDS,
    DEVICE_NAMES,
    AdapterMethod,
    AdapterTargets,
    Backend,
    BaseQuant,
    DataMode,
    DeploymentTarget,
    Device,
    MethodType,
    OptimizerExperiment,
    OptimizerKind,
    PreferenceLoss,
    ReferencePolicy,
    Smoothing,
    ThoughtsRule,
    TokenizerMode,
    backend_key,
)
from shared.contract.values import ContractValue, Integer, Name, Number, ParentName, TemplateArguments

DEFAULT_MODEL_ID = "Qwen/Qwen3.5-4B"
"""The base model of a contract that names none."""
MAX_CE_LAST_K = 64
MAX_ALPHA = 4096
MAX_ANSWER_MODELS, MAX_ANSWER_MODEL = 64, 400
"""Entries of ``provenance.answer_models``, and characters of one."""


class ModelSection(ContractValue):
    """The base model that is tuned."""

    hf_repo: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        DEFAULT_MODEL_ID,
        validation_alias=AliasChoices("hf_repo", "name"),
        description="Name of the base model in the catalogue.",
    )
    weight_shards: tuple[str, ...] | None = Field(None, description="Explicit shards; null: the catalogue's.")
    config_json: str | None = None
    tokenizer_json: str | None = None


class ProvenanceSection(ContractValue):
    """Lineage and licence of the base, carried into the manifest and the model card."""

    base_family: str | None = None
    upstream_model_id: str | None = None
    license_class: str | None = None
    attribution_required: StrictBool = False
    answer_models: (
        Annotated[
            tuple[Annotated[str, StringConstraints(min_length=1, max_length=MAX_ANSWER_MODEL)], ...],
            Field(min_length=1, max_length=MAX_ANSWER_MODELS),
        ]
        | None
    ) = Field(
        None,
        description="Models of other servers whose answers are training rows, each with its server and what was stated about its terms.",
    )


class ContextFilter(ContractValue):
    """Filter of the rows to train on, by their own metadata."""

    categories: tuple[str, ...] | None = None
    difficulty_min: Annotated[Integer, Field(ge=1, le=10)] | None = None
    difficulty_max: Annotated[Integer, Field(ge=1, le=10)] | None = None
    rating_min: Annotated[Integer, Field(ge=1, le=5)] | None = None

    @model_validator(mode="after")
    def _admits_something(self) -> Self:
        if self.difficulty_min and self.difficulty_max and self.difficulty_min > self.difficulty_max:
            raise ValueError("difficulty_min is greater than difficulty_max, so no row would be left")
        return self


class DataSection(ContractValue):
    """Training and validation data."""

    train_file: str = Field(min_length=1, description="Id of an uploaded JSONL file.")
    validation_file: str | None = Field(
        None, description="Id of an uploaded JSONL file; null: a split of the training file."
    )
    tokenizer_mode: TokenizerMode = TokenizerMode.HF
    min_rating: Integer = Field(
        3, ge=0, le=5, description="Rows rated lower are left out; 0 keeps all; unrated rows stay."
    )
    context_filter: ContextFilter | None = None
    validation_split_ratio: Number = Field(
        0.05,
        ge=0.0,
        le=0.5,
        description="Share of the rows that is held out for validation if no validation file is given; at most half of "
        "the rows, and at least 10 if there are more than 20. 0: no rows.",
    )
    mode: DataMode = DataMode.STRICT
    replay_file: str | None = Field(
        None, description="Id of an uploaded JSONL file whose rows are mixed into each epoch, against forgetting."
    )
    replay_ratio: Number = Field(
        0.1, ge=0.0, le=0.5, description="Replayed rows per other row of an epoch; used only with replay_file."
    )
    template_arguments: TemplateArguments = Field(
        {},
        validate_default=True,
        description="Arguments of the base's chat template, e.g. enable_thinking or reasoning_effort, with which rows "
        "are written and the adapter's chats are served; {}: the template's own defaults.",
    )
    thoughts: ThoughtsRule = Field(
        ThoughtsRule.LEARN,
        description="Use of an answer's thoughts (reasoning_content). learn: train on them; context: keep them in the row, but do"
        " not train on them; drop: remove them.",
    )


class AdapterSection(ContractValue):
    """The shape of the adapter, and what it starts from."""

    method: AdapterMethod = Field(
        AdapterMethod.AUTO, description="auto follows quant.base: qlora over nf4, lora over none."
    )
    rank: Integer = Field(16, ge=1, le=512, validation_alias=AliasChoices("rank", "r"))
    alpha: Integer = Field(32, ge=1, le=MAX_ALPHA, validation_alias=AliasChoices("alpha", "lora_alpha"))
    dropout: Number = Field(0.0, ge=0.0, lt=1.0)
    targets: AdapterTargets = AdapterTargets.FULL_GRAPH
    target_modules: tuple[str, ...] | None = Field(
        None, min_length=1, description="Module names, e.g. q_proj; null: every linear layer except the head."
    )
    continue_from: ParentName | None = Field(
        None,
        description="Adapter to start from: an id, a checkpoint's id, an alias, or a foreign name. It gives base, rank, alpha, modules,"
        " precision and template arguments where they are left out. Null: a new adapter.",
    )


class QuantSection(ContractValue):
    """Precision of the frozen base in memory."""

    base: BaseQuant = Field(
        BaseQuant.AUTO,
        description="nf4: four bits per weight. none: bfloat16 on a GPU, float32 on a CPU. auto: none if it fits with headroom, else nf4.",
    )
    double_quant: StrictBool = Field(True, description="Quantise NF4's scales too; has no effect on other bases.")


class CurriculumSchedule(ContractValue):
    """Highest difficulty admitted per epoch; an epoch without a value has the last one given before it."""

    epoch_1_max_difficulty: Annotated[Integer, Field(ge=1, le=10)] | None = None
    epoch_2_max_difficulty: Annotated[Integer, Field(ge=1, le=10)] | None = None
    epoch_3_max_difficulty: Annotated[Integer, Field(ge=1, le=10)] | None = None
    curriculum_phases: tuple[str, ...] | None = Field(
        None,
        description="Names of the epochs, reported at the end of each; later epochs use the last name. They have no other effect.",
    )


def _backend(name: object) -> object:
    """Return the backend of a spelling; any other value is returned as it is, so that validation refuses it."""
    return BACKENDS.get(backend_key(name), name) if isinstance(name, str) else name


class ExecSection(ContractValue):
    """Settings of the training."""

    epochs: Integer = Field(3, ge=1, le=1000)
    seq_len: Integer = Field(
        256,
        ge=8,
        le=1 << 20,
        description="Tokens per row; longer rows lose their beginning. Left out, without a preset: the length of the longest "
        "row, as far as base and memory allow.",
    )
    batch_size: Integer = Field(4, ge=1, le=4096, description="Rows per micro-batch.")
    grad_accum: Integer = Field(4, ge=1, le=4096, description="Micro-batches per optimizer step.")
    learning_rate: Number = Field(2e-4, gt=0.0, le=1.0)
    warmup_steps: Integer = Field(
        100, ge=0, le=1_000_000, description="Warm-up in optimizer steps; limited to 10 % of the run."
    )
    weight_decay: Number = Field(0.01, ge=0.0, le=1.0)
    max_grad_norm: Number = Field(1.0, gt=0.0, le=1e6)
    seed: Integer = Field(42, ge=0, le=2**31 - 1)
    checkpoint_every: Integer = Field(
        500, ge=1, le=10_000_000, description="Optimizer steps between checkpoints; each epoch's end has one too."
    )
    checkpoint_minutes: Number = Field(
        5.0,
        gt=0.0,
        le=1440.0,
        description="Maximum time between checkpoints; an additional checkpoint is written only to resume from.",
    )
    early_stopping_patience: Integer | None = Field(
        None, ge=1, description="Stop after this many validations in a row without an improvement on the best one."
    )
    resume_from: str | None = None
    max_vram_fraction: Number | None = Field(None, gt=0.0, le=1.0)
    adapter_tag: Name | None = None
    backend: Annotated[Backend, BeforeValidator(_backend)] | None = Field(
        None,
        description="A kernel of the original that the contract must match; sets method and base if both are open.",
    )
    qlora_require_full_proxy_stack: StrictBool = False
    qlora_allow_partial_proxy_stack: StrictBool = False
    qlora_max_skip_rate: Number | None = Field(None, ge=0.0, le=1.0)
    qlora_lm_head_only: StrictBool = False
    qlora_proxy_max_layers: Integer | None = Field(None, ge=0)
    qlora_ce_last_k: Integer = Field(
        0, ge=0, le=MAX_CE_LAST_K, description="Loss on the last K assistant tokens; 0 means all."
    )
    curriculum_schedule: CurriculumSchedule | None = Field(
        None, description="Used when curriculum.enabled is true; without it the bound rises from 3 to 10."
    )


class ArtifactSection(ContractValue):
    """The adapter and its publication."""

    adapter_schema_version: Integer = Field(3, ge=3, le=3)
    allow_placeholder_attention_merge: StrictBool = True
    deployment_target: DeploymentTarget = DeploymentTarget.WORKSTATION
    publish: StrictBool = Field(True, description="False: train and store only, do not prove it on the serving tier.")
    alias: Name | None = Field(None, description="Alias that is moved to the adapter when the job succeeds.")


class DeviceSection(ContractValue):
    """The training device."""

    device: Annotated[
        Device,
        BeforeValidator(lambda name: DEVICE_NAMES.get(name.strip().lower(), name) if isinstance(name, str) else name),
    ] = Field(
        Device.AUTO, description="Also: best, default, vulkan, dx12, d3d12 (auto); gpu, nvidia (cuda); mps (metal)."
    )
    require_gpu: StrictBool = Field(False, description="True: never train on a CPU.")
    allow_cpu_fallback: StrictBool = Field(True, description="False: fail when an accelerator cannot be used.")


class TrajectorySection(ContractValue):
    """Weights of rows in the loss, by their metadata."""

    enabled: StrictBool = False
    tool_trace_boost: Number = Field(1.1, ge=0.0)
    failure_category_boost: Number = Field(1.15, ge=0.0)
    quality_floor: Annotated[Integer, Field(ge=1, le=5)] | None = None
    quality_boost: Number = Field(1.05, ge=0.0)


class OptimizerSection(ContractValue):
    """The optimizer."""

    kind: OptimizerKind = OptimizerKind.ADAMW
    experiment: OptimizerExperiment = OptimizerExperiment.OFF


class CurriculumSection(ContractValue):
    """Easy rows first: each epoch admits rows up to a difficulty, in ascending order."""

    enabled: StrictBool = False


class ChatmlSection(ContractValue):
    """Markers of a turn; null values come from the base's own chat template."""

    im_start: Annotated[str, Field(min_length=1)] | None = None
    im_end: Annotated[str, Field(min_length=1)] | None = None
    role_system: Annotated[str, Field(min_length=1)] | None = None
    role_user: Annotated[str, Field(min_length=1)] | None = None
    role_assistant: Annotated[str, Field(min_length=1)] | None = None


class RewardSection(ContractValue):
    """Scoring of answers."""

    hook: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")] | None = None


class MethodSection(ContractValue):
    """The training method."""

    type: MethodType = Field(
        MethodType.SUPERVISED,
        description="supervised: learn the answers. dpo: learn which of two answers is preferred; its rows are pairs. kto: learn from"
        " answers that are rated good or bad. reinforcement is reserved.",
    )


DEFAULT_BETA: dict[PreferenceLoss, float] = {
    PreferenceLoss.SIGMOID: 0.1,
    PreferenceLoss.SIGMOID_NORM: 1.0,
    PreferenceLoss.IPO: 0.1,
    PreferenceLoss.KTO: 0.1,
}


class PreferenceSection(ContractValue):
    """Settings of preference training (method.type dpo or kto)."""

    loss: PreferenceLoss = Field(
        PreferenceLoss.SIGMOID,
        description="sigmoid: DPO. sigmoid_norm: the same with the mean log-probability per token. ipo: IPO, per token. kto: the"
        " only loss of method.type kto.",
    )
    beta: Number | None = Field(
        None,
        gt=0.0,
        le=2.0,
        description="How strongly the tuned model is held to its reference. Null: 0.1, and 1.0 with sigmoid_norm.",
    )
    label_smoothing: Number = Field(
        0.0, ge=0.0, lt=0.5, description="Share of the pairs that may be labelled the wrong way round; not with ipo."
    )
    smoothing: Smoothing = Field(
        Smoothing.CONSERVATIVE, description="conservative: the mixture of both labels. robust: its unbiased form."
    )
    sft_weight: Number = Field(
        0.0,
        ge=0.0,
        le=10.0,
        description="Weight of the mean loss per token on the preferred answer, added to each pair.",
    )
    desirable_weight: Number | None = Field(
        None,
        gt=0.0,
        le=100.0,
        description="kto: weight of an answer that is rated good. Null: good and bad answers have the same weight in total.",
    )
    undesirable_weight: Number | None = Field(
        None, gt=0.0, le=100.0, description="kto: weight of an answer that is rated bad. Null: as for desirable_weight."
    )
    reference: ReferencePolicy = Field(
        ReferencePolicy.AUTO,
        description="The model that the tuned model is compared with: the one that the run starts from, which is the "
        "adapter that it continues from (parent), or else the base. Other values are refused.",
    )

    @property
    def strength(self) -> float:
        """Beta, the loss's own default if it is left out."""
        return DEFAULT_BETA[self.loss] if self.beta is None else self.beta

"""The fine-tune contract: everything that a training job may request, in sections.

Names and nesting are those of the original system's contract (model, provenance, data, adapter, quant, exec, artifact);
its flat extras have sections of their own (device, trajectory, optimizer, curriculum, chatml, reward). Shape and ranges
are checked here; which well-formed contracts may run is decided in `shared/contract/refusals.py` and
`shared/contract/plan.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, NoReturn, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictStr,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

from shared.hashing import digest_json

DEFAULT_MODEL_ID = "Qwen/Qwen3.5-4B"
"""The base model of a contract that names none."""
MAX_CE_LAST_K = 64
MAX_ALPHA = 4096

BAD_NAME = "bad_name"
"""Pydantic's error type of a name that :func:`describe_bad_name` describes."""
_NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
_FOREIGN_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,255}$"


def describe_bad_name(text: str) -> str | None:
    """Return the fault of a name, as a sentence; None when it is valid."""
    if re.fullmatch(_NAME_PATTERN, text):
        return None
    return (
        f"{text[:80]!r} is not a valid name: lower-case letters, digits, '.', '_' and '-', at most 64 of them, a letter or digit "
        "first; e.g. support-v2"
    )


def _check_name(value: object) -> object:
    if isinstance(value, str) and (fault := describe_bad_name(value)):
        raise PydanticCustomError(BAD_NAME, "{fault}", {"fault": fault})
    return value


def describe_bad_foreign_name(text: str) -> str | None:
    """Return the fault of a name of another provider's model, as a sentence; None when it is valid."""
    if re.fullmatch(_FOREIGN_NAME_PATTERN, text):
        return None
    return (
        f"{text[:80]!r} is not a valid foreign name: letters, digits, '.', '_', ':' and '-', at most 256 of them, a letter or digit "
        "first; e.g. ft:gpt-4o-mini-2024-07-18:acme:support:9xAbC1"
    )


def _check_foreign_name(value: object) -> object:
    if isinstance(value, str) and (fault := describe_bad_foreign_name(value)):
        raise PydanticCustomError(BAD_NAME, "{fault}", {"fault": fault})
    return value


Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
"""A strict number, unlike pydantic's default: neither true nor a string is accepted."""

Name = Annotated[str, StringConstraints(pattern=_NAME_PATTERN), BeforeValidator(_check_name)]
"""A name that callers choose (alias, suffix, base model): safe in a URL, a file name and a log line."""
ForeignNameText = Annotated[str, StringConstraints(pattern=_FOREIGN_NAME_PATTERN), BeforeValidator(_check_foreign_name)]
"""A name of another provider's model: safe in URLs, log lines and JSON without escapes. Adapters' ids are invalid."""


_Item = TypeVar("_Item")


class FrozenDict(dict[str, _Item]):
    """An immutable dictionary: part of a value whose digest others have."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a plan is not changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict[_Item]], tuple[dict[str, _Item]]]:
        # A dictionary is normally copied by filling it item by item, which this class refuses.
        return type(self), (dict(self),)


MAX_ARGUMENTS = 8
ArgumentName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]{0,63}$")]
ArgumentValue = StrictBool | Integer | Annotated[StrictStr, Field(max_length=64)]
TemplateArguments = Annotated[
    Mapping[ArgumentName, ArgumentValue],
    Field(max_length=MAX_ARGUMENTS),
    AfterValidator(lambda arguments: FrozenDict(sorted(arguments.items()))),
]
"""Arguments of a chat template by name, e.g. ``{"enable_thinking": False}``; their order means nothing."""


def describe_arguments(arguments: Mapping[str, Any]) -> str:
    """Describe template arguments for a person, e.g. ``enable_thinking = false``."""
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(arguments.items()))


class ContractValue(BaseModel):
    """Frozen, closed value: the base of contract sections, plans and preset files. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class TokenizerMode(StrEnum):
    HF = "hf"
    VOX = "vox"


class AdapterMethod(StrEnum):
    """Training method; ``auto``, which plans do not contain, follows the base's precision."""

    AUTO = "auto"
    LORA = "lora"
    QLORA = "qlora"


class AdapterTargets(StrEnum):
    FULL_GRAPH = "full_graph"
    LM_HEAD_PROXY = "lm_head_proxy"


class BaseQuant(StrEnum):
    """How the frozen base is held; ``auto``, which no plan holds, is decided by the machine's memory."""

    AUTO = "auto"
    NONE = "none"
    NF4 = "nf4"


class Kernel(StrEnum):
    """A training kernel: the original's two, of which the first may be planned and is never run, and plain LoRA."""

    BURN_LORA = "burn_lora"
    CANDLE_QLORA = "candle_qlora"
    PEFT_LORA = "peft_lora"


TrainedMethod = Literal[AdapterMethod.LORA, AdapterMethod.QLORA]
HeldBase = Literal[BaseQuant.NONE, BaseQuant.NF4]
Backend = Literal[Kernel.BURN_LORA, Kernel.CANDLE_QLORA]
BACKENDS: dict[str, Backend] = {
    **dict.fromkeys(("lora", "burn", "burn-lora"), Kernel.BURN_LORA),
    **dict.fromkeys(("qlora", "candle", "candle-qlora"), Kernel.CANDLE_QLORA),
}
"""Every accepted name of a backend, in any case, with ``_`` or ``-``."""


class BaseWeights(StrEnum):
    """Which of a base's weights a merge starts from."""

    ORIGINAL = "original"
    DEQUANT_NF4 = "dequant_nf4"


class MethodType(StrEnum):
    """The training method: on answers, or on pairs of a preferred and a rejected answer; the last two names are reserved."""

    SUPERVISED = "supervised"
    DPO = "dpo"
    KTO = "kto"
    REINFORCEMENT = "reinforcement"


class PreferenceLoss(StrEnum):
    """The loss of a pair: by the difference of log-probabilities, of their means by token, or IPO's squared distance."""

    SIGMOID = "sigmoid"
    SIGMOID_NORM = "sigmoid_norm"
    IPO = "ipo"


class Smoothing(StrEnum):
    """How label smoothing enters the loss: cDPO's mixture, or its unbiased form (robust DPO)."""

    CONSERVATIVE = "conservative"
    ROBUST = "robust"


class ReferencePolicy(StrEnum):
    """The policy that a preference run is compared with; ``auto`` is the model as it stands before the first step."""

    AUTO = "auto"
    PARENT = "parent"
    BASE = "base"


class DeploymentTarget(StrEnum):
    WORKSTATION = "workstation"
    MOBILE_EDGE = "mobile_edge"


class OptimizerKind(StrEnum):
    """``paged_adamw_8bit`` keeps AdamW's moments in 8 bit, and on a GPU in memory that may be swapped to the host."""

    ADAMW = "adamw"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"


class OptimizerExperiment(StrEnum):
    OFF = "off"
    MUON_CLIP_LIKE = "muon_clip_like"


class Device(StrEnum):
    """Where a job trains: ``auto`` takes the GPU when the worker has one."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"


DEVICE_NAMES: dict[str, Device] = {
    **dict.fromkeys(("", "cpu"), Device.CPU),
    **dict.fromkeys(("auto", "best", "default", "vulkan", "dx12", "d3d12"), Device.AUTO),
    **dict.fromkeys(("cuda", "gpu", "nvidia"), Device.CUDA),
    **dict.fromkeys(("metal", "mps"), Device.METAL),
}
"""Every accepted spelling of a device, in any case."""


class ModelSection(ContractValue):
    """Which base model is tuned."""

    hf_repo: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        DEFAULT_MODEL_ID,
        validation_alias=AliasChoices("hf_repo", "name"),
        description="Name of the base model in the catalogue.",
    )
    weight_shards: tuple[str, ...] | None = Field(None, description="Explicit shards; the catalogue's when null.")
    config_json: str | None = None
    tokenizer_json: str | None = None


class ProvenanceSection(ContractValue):
    """Lineage and licence of the base, carried into the manifest and the model card."""

    base_family: str | None = None
    upstream_model_id: str | None = None
    license_class: str | None = None
    attribution_required: StrictBool = False


class ContextFilter(ContractValue):
    """Which rows are trained on, by their own metadata."""

    categories: tuple[str, ...] | None = None
    difficulty_min: Annotated[Integer, Field(ge=1, le=10)] | None = None
    difficulty_max: Annotated[Integer, Field(ge=1, le=10)] | None = None
    rating_min: Annotated[Integer, Field(ge=1, le=5)] | None = None

    @model_validator(mode="after")
    def _admits_something(self) -> Self:
        if self.difficulty_min and self.difficulty_max and self.difficulty_min > self.difficulty_max:
            raise ValueError("difficulty_min is greater than difficulty_max, so no row would be left")
        return self


class DataMode(StrEnum):
    """Handling of invalid lines in a data file: strict refuses the file, lenient skips and counts the line."""

    STRICT = "strict"
    LENIENT = "lenient"


class ThoughtsRule(StrEnum):
    """Use of an answer's thoughts (``reasoning_content``) in training."""

    LEARN = "learn"
    CONTEXT = "context"
    DROP = "drop"


class DataSection(ContractValue):
    """Training and validation data."""

    train_file: str = Field(min_length=1, description="Id of an uploaded JSONL file.")
    validation_file: str | None = Field(None, description="Id of an uploaded JSONL file; else a split of the first.")
    tokenizer_mode: TokenizerMode = TokenizerMode.HF
    min_rating: Integer = Field(
        3, ge=0, le=5, description="Rows rated lower are left out; 0 keeps all; unrated rows stay."
    )
    context_filter: ContextFilter | None = None
    validation_split_ratio: Number = Field(
        0.05,
        ge=0.0,
        le=0.5,
        description="Part of the rows that is held out to validate if no validation file is given; of more than 20 rows "
        "at least 10, and at most half. 0: no rows.",
    )
    mode: DataMode = DataMode.STRICT
    replay_file: str | None = Field(
        None, description="Id of an uploaded JSONL file whose rows are mixed into each epoch, against forgetting."
    )
    replay_ratio: Number = Field(
        0.1, ge=0.0, le=0.5, description="Replayed rows of an epoch for each of its other rows; with replay_file only."
    )
    template_arguments: TemplateArguments = Field(
        {},
        validate_default=True,
        description="Arguments of the base's chat template, e.g. enable_thinking or reasoning_effort, by which rows are written and"
        " the adapter's chats are served; {}: the template's own defaults.",
    )
    thoughts: ThoughtsRule = Field(
        ThoughtsRule.LEARN,
        description="Thoughts of answers (reasoning_content): learn: trained on like the answer; context: written, but not trained"
        " on; drop: left out.",
    )


ParentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,255}$")]
"""Any name of an adapter: its id, an alias, or a foreign name."""


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
        None, min_length=1, description="Module names, e.g. q_proj; every linear layer but the head when null."
    )
    continue_from: ParentName | None = Field(
        None,
        description="Adapter to start from: an id, a checkpoint's id, an alias, or a foreign name. It gives base, rank, alpha, modules,"
        " precision and template arguments where they are left out. Null: a new adapter.",
    )


class QuantSection(ContractValue):
    """How the frozen base is held in memory."""

    base: BaseQuant = Field(
        BaseQuant.AUTO,
        description="nf4: four bits a weight. none: bfloat16 on a GPU, float32 on a CPU. auto: none if it fits with headroom, else nf4.",
    )
    double_quant: StrictBool = Field(True, description="Quantise NF4's scales too; without effect on another base.")


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


def backend_key(name: str) -> str:
    """Return a backend's name as :data:`BACKENDS` spells it."""
    return name.strip().lower().replace("_", "-")


class ExecSection(ContractValue):
    """How it is trained."""

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
        100, ge=0, le=1_000_000, description="Optimizer steps; at most 10 % of them are used."
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
    """Rows that weigh more in the loss, by their own metadata."""

    enabled: StrictBool = False
    tool_trace_boost: Number = Field(1.1, ge=0.0)
    failure_category_boost: Number = Field(1.15, ge=0.0)
    quality_floor: Annotated[Integer, Field(ge=1, le=5)] | None = None
    quality_boost: Number = Field(1.05, ge=0.0)


class OptimizerSection(ContractValue):
    """Which optimizer."""

    kind: OptimizerKind = OptimizerKind.ADAMW
    experiment: OptimizerExperiment = OptimizerExperiment.OFF


class CurriculumSection(ContractValue):
    """Easy rows first: each epoch admits rows up to a difficulty, in ascending order."""

    enabled: StrictBool = False


class ChatmlSection(ContractValue):
    """Marks of a turn; what is null comes from the base's own chat template."""

    im_start: Annotated[str, Field(min_length=1)] | None = None
    im_end: Annotated[str, Field(min_length=1)] | None = None
    role_system: Annotated[str, Field(min_length=1)] | None = None
    role_user: Annotated[str, Field(min_length=1)] | None = None
    role_assistant: Annotated[str, Field(min_length=1)] | None = None


class RewardSection(ContractValue):
    """How answers are scored."""

    hook: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")] | None = None


class MethodSection(ContractValue):
    """The training method."""

    type: MethodType = Field(
        MethodType.SUPERVISED,
        description="supervised: learn the answers. dpo: learn which of two answers is preferred; its rows are pairs. kto and"
        " reinforcement are reserved.",
    )


DEFAULT_BETA: dict[PreferenceLoss, float] = {
    PreferenceLoss.SIGMOID: 0.1,
    PreferenceLoss.SIGMOID_NORM: 1.0,
    PreferenceLoss.IPO: 0.1,
}


class PreferenceSection(ContractValue):
    """How preferences are learnt (method.type dpo)."""

    loss: PreferenceLoss = Field(
        PreferenceLoss.SIGMOID,
        description="sigmoid: DPO. sigmoid_norm: the same with the mean log-probability by token. ipo: IPO, by token.",
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
        description="Weight of the mean loss by token on the preferred answer, added to each pair.",
    )
    reference: ReferencePolicy = Field(
        ReferencePolicy.AUTO,
        description="The policy that is compared with: the model that the run starts from, which is the adapter that it continues from"
        " (parent), or else the base. Any other is refused.",
    )

    @property
    def strength(self) -> float:
        """Beta, the loss's own default if it is left out."""
        return DEFAULT_BETA[self.loss] if self.beta is None else self.beta


class FineTuneContract(ContractValue):
    """One training job, complete. Two equal contracts have the same digest on every machine."""

    model: ModelSection = ModelSection()
    provenance: ProvenanceSection = ProvenanceSection()
    data: DataSection
    adapter: AdapterSection = AdapterSection()
    quant: QuantSection = QuantSection()
    exec: ExecSection = ExecSection()
    artifact: ArtifactSection = ArtifactSection()
    device: DeviceSection = DeviceSection()
    trajectory: TrajectorySection = TrajectorySection()
    optimizer: OptimizerSection = OptimizerSection()
    curriculum: CurriculumSection = CurriculumSection()
    chatml: ChatmlSection = ChatmlSection()
    reward: RewardSection = RewardSection()
    method: MethodSection = MethodSection()
    preference: PreferenceSection = PreferenceSection()
    collateral_damage_verified: StrictBool = False

    @property
    def has_pairs(self) -> bool:
        """Return true if a row is a pair of answers."""
        return self.method.type is MethodType.DPO

    @property
    def sequences_per_row(self) -> int:
        """Sequences that are computed for a row: two for a pair."""
        return 2 if self.has_pairs else 1


def contract_digest(contract: FineTuneContract, content: dict[str, str]) -> str:
    """Return SHA-256 over every knob of the contract plus the hashes of the files and base that its names refer to.

    Args:
        contract: the contract; shards count as a set, so their order does not matter.
        content: content hashes by role, e.g. ``{"train_file": sha256, "base": base digest}``. They replace the file
            ids and the names of base and parent, which differ from one installation to the next.
    """
    fields: dict[str, Any] = contract.model_dump(
        mode="json",
        exclude={
            "model": {"hf_repo"},
            "data": {"train_file", "validation_file", "replay_file"},
            "adapter": {"continue_from"},
        },
    )
    # A set: the order of shards changes nothing that is trained.
    fields["model"]["weight_shards"] = sorted(fields["model"]["weight_shards"] or [])
    # At their defaults these fields are left out, so that the digest equals that of an earlier release without them.
    for name, default in (("template_arguments", {}), ("thoughts", ThoughtsRule.LEARN)):
        if fields["data"][name] == default:
            del fields["data"][name]
    if contract.method == MethodSection():
        del fields["method"]
    if contract.preference == PreferenceSection():
        del fields["preference"]
    return digest_json({"contract": fields, "content": content})


class ImportContract(ContractValue):
    """An import job: an adapter that another program trained becomes one that is served here."""

    weights_file: str = Field(
        min_length=1,
        description="Uploaded file: adapter_model.safetensors, or the original's candle_qlora_adapter.safetensors.",
    )
    sidecar_file: str = Field(
        min_length=1, description="Uploaded file: its adapter_config.json, or the original's v2 meta or v3 manifest."
    )
    template_file: str | None = Field(
        None,
        min_length=1,
        description="Uploaded file: the chat template that it was trained with. Chats must produce the same tokens with the base's template.",
    )
    template_arguments: TemplateArguments = Field(
        {},
        validate_default=True,
        description="Arguments of the chat template that it was trained with, e.g. enable_thinking.",
    )
    model: str = Field(min_length=1, description="Name of the base that it was trained on.")
    name: Name = Field(description="First part of the adapter's id.")
    publish: StrictBool = Field(
        True, description="Measure it on every serving replica, and serve it; else it is stored only."
    )
    alias: Name | None = Field(None, description="Alias to move to it once it is published.")


class MergeContract(ContractValue):
    """A merge job: an adapter folded into its full-precision base, as a complete model folder."""

    adapter: str = Field(min_length=1, description="Adapter id, or an alias of one.")
    dtype: Annotated[str, StringConstraints(pattern=r"^(float32|bfloat16|float16)$")] | None = Field(
        None, description="Stored dtype of the merged weights; each tensor's own when null."
    )
    base_weights: BaseWeights = Field(
        BaseWeights.ORIGINAL,
        description="original: the base's own weights, before quantisation. dequant_nf4: the weights that training"
        " computed with, quantised to NF4 and dequantised.",
    )
    max_kl_nats: Annotated[Number, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Largest mean KL (nats) of the merged model from base + adapter; past it the job fails. Null: by the stored"
        " dtype, 1e-6 (float32), 1e-4 (float16) or 1e-2 (bfloat16).",
    )

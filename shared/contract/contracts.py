"""The contracts that jobs request: of a training, an import and a merge; and the digest of the first."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictBool, StringConstraints

from shared.contract.choices import BaseWeights, MethodType, ThoughtsRule
from shared.contract.sections import (
    AdapterSection,
    ArtifactSection,
    ChatmlSection,
    CurriculumSection,
    DataSection,
    DeviceSection,
    ExecSection,
    MethodSection,
    ModelSection,
    OptimizerSection,
    PreferenceSection,
    ProvenanceSection,
    QuantSection,
    RewardSection,
    TrajectorySection,
)
from shared.contract.values import ContractValue, Name, Number, TemplateArguments
from shared.hashing import digest_json

RATED_FIELDS = ("desirable_weight", "undesirable_weight")
"""Fields of the preference section that only rated answers have."""


class FineTuneContract(ContractValue):
    """The options of a training job; the plan decides open ones. Equal contracts have equal digests everywhere."""

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
    def has_preferences(self) -> bool:
        """Return true if answers are compared with a reference: pairs of them, or rated ones."""
        return self.method.type in (MethodType.DPO, MethodType.KTO)

    @property
    def sequences_per_row(self) -> int:
        """Sequences that are computed for a row: two for a pair."""
        return 2 if self.has_pairs else 1


def contract_digest(contract: FineTuneContract, content: dict[str, str]) -> str:
    """Return SHA-256 over every field of the contract and the hashes of the files and the base that its names refer to.

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
    # A set, because the order of shards does not affect the training.
    fields["model"]["weight_shards"] = sorted(fields["model"]["weight_shards"] or [])
    # At their defaults these fields are left out, so that the digest equals that of an earlier release without them.
    for name, default in (("template_arguments", {}), ("thoughts", ThoughtsRule.LEARN)):
        if fields["data"][name] == default:
            del fields["data"][name]
    if contract.provenance.answer_models is None:
        del fields["provenance"]["answer_models"]
    if contract.method == MethodSection():
        del fields["method"]
    if contract.preference == PreferenceSection():
        del fields["preference"]
    elif contract.method.type is not MethodType.KTO:
        fields["preference"] = {key: value for key, value in fields["preference"].items() if key not in RATED_FIELDS}
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
        True, description="True: measure it on every serving replica, and serve it. False: only store it."
    )
    alias: Name | None = Field(None, description="Alias to move to it once it is published.")


class MergeContract(ContractValue):
    """A merge job: an adapter folded into its full-precision base, as a complete model folder."""

    adapter: str = Field(min_length=1, description="Adapter id, or an alias of one.")
    dtype: Annotated[str, StringConstraints(pattern=r"^(float32|bfloat16|float16)$")] | None = Field(
        None, description="Stored dtype of the merged weights; null: each tensor's own."
    )
    base_weights: BaseWeights = Field(
        BaseWeights.ORIGINAL,
        description="original: the base's own weights, before quantisation. dequant_nf4: the weights that training"
        " computed with, quantised to NF4 and dequantised.",
    )
    max_kl_nats: Annotated[Number, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Largest mean KL (nats) of the merged model from base + adapter; above it, the job fails. Null: by "
        "the stored"
        " dtype, 1e-6 (float32), 1e-4 (float16) or 1e-2 (bfloat16).",
    )

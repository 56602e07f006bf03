"""Manifests: an adapter's (v3), which lists its origin and the digest of each file, and a merged model's.

The manifest's bytes are canonical JSON, and their SHA-256 is the adapter's identity: a published adapter is named
``<name>@<digest>``, and that name always means the same adapter. Logical tensor names (``l0.q``) follow the original's
schema; ``base_key_map`` maps each to the base model's own key, from which the PEFT key that is stored follows
mechanically.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from shared.artifacts.lineage import Lineage
from shared.artifacts.tensor_values import verify_products, verify_values
from shared.base_models.catalog import Sha256
from shared.base_models.families import is_transposed
from shared.base_models.weights import TensorInfo, read_tensors
from shared.contract.choices import (
    BaseQuant,
    BaseWeights,
    HeldBase,
    MethodType,
    PreferenceLoss,
    Smoothing,
    TrainedMethod,
)
from shared.contract.sections import MAX_ALPHA, ProvenanceSection
from shared.contract.values import Name, TemplateArguments
from shared.errors import ArtifactInvalid, Code
from shared.hashing import canonical_json, digest_file

MANIFEST_NAME = "adapter_manifest.json"
WEIGHTS_NAME = "adapter_model.safetensors"
CONFIG_NAME = "adapter_config.json"
UNSERVABLE_FEATURES = (
    "use_dora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "fan_in_fan_out",
    "lora_bias",
    "layer_replication",
    "alora_invocation_tokens",
    "target_parameters",
    "use_bdlora",
    "use_qalora",
)
"""PEFT options that vLLM refuses or, worse, accepts and ignores."""
MAX_SHOWN = 200
"""Largest number of characters of an option's value that a refusal quotes."""
MAX_CONFIG_BYTES = 1 << 20
"""Size limit of PEFT's config. It usually has about 1 kB, and more only if it names every layer."""
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A plain file name: no separator and no leading dot, so that a file stays in its own folder."""
TrainedDtype = Literal["float32", "bfloat16"]
Precision = Literal["nf4", "float32", "bfloat16"]
"""Format of the frozen base's weights during training."""


class ManifestQuant(BaseModel):
    """Quantisation of the base during the adapter's training."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    base_quant: HeldBase
    double_quant: bool = True


class ParentRef(BaseModel):
    """The adapter that another one was continued from."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    id: str
    digest: Sha256
    step: int = Field(ge=0)


class ManifestPreference(BaseModel):
    """Settings of the preference training."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    loss: PreferenceLoss
    beta: float
    label_smoothing: float
    smoothing: Smoothing
    sft_weight: float
    desirable_weight: float | None = None
    undesirable_weight: float | None = None
    reference: Literal["base", "parent"]
    reference_digest: Sha256 = Field(description="SHA-256 of the reference's scores of every pair or rated answer.")


class AdapterManifest(BaseModel):
    """``adapter_manifest.json``, version 3; the fields after ``provenance`` are Mens' own, which v3 readers skip."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal["vox_mens_adapter"] = "vox_mens_adapter"
    version: Literal[3] = 3
    adapter_method: TrainedMethod
    quant: ManifestQuant
    base_key_map: dict[str, str] = Field(min_length=1, description="Logical name → base model's tensor key.")
    layer_order: list[str] = Field(description="Logical names in training order.")
    vocab: int = Field(ge=1)
    d_model: int = Field(ge=1)
    rank: int = Field(ge=1)
    alpha: int = Field(ge=1, le=MAX_ALPHA)
    base_model: str
    provenance: ProvenanceSection | None = None
    name: Name = Field(description="Left part of the adapter's id.")
    base_digests: dict[str, Sha256] = Field(description="File → SHA-256 of the base it was trained on.", min_length=1)
    source_digests: dict[str, Sha256] | None = Field(
        None,
        description="Inputs → SHA-256: train, validation, replay; for an import: weights and sidecar.",
    )
    contract_digest: Sha256
    template_digest: Sha256 = Field(description="SHA-256 of the chat template.")
    template_arguments: TemplateArguments | None = Field(
        None,
        description=(
            "Arguments of the chat template that its rows were written with; null: the template's own defaults."
        ),
    )
    step: int = Field(ge=0, description="Optimizer steps it was trained for, without those of its parent.")
    parent: ParentRef | None = Field(None, description="The adapter that training started from; null: a new one.")
    trained_dtype: TrainedDtype | None = Field(
        None, description="Dtype that the base was computed in; null: an import, or trained by an older release."
    )
    lineage: Lineage | None = Field(
        None, description="Provenance of the training process; null: an import, or trained by an older release."
    )
    method: Literal[MethodType.DPO, MethodType.KTO] | None = Field(
        None, description="Training method: dpo or kto; null: supervised, or an import."
    )
    preference: ManifestPreference | None = Field(None, description="Null: the method is neither dpo nor kto.")
    files: dict[FileName, Sha256] = Field(description="Every other file of the folder → SHA-256.")

    @model_validator(mode="after")
    def _names_agree(self) -> AdapterManifest:
        if sorted(self.layer_order) != sorted(self.base_key_map):
            raise ValueError("layer_order and base_key_map name different layers, or name a layer twice")
        # PEFT or vLLM would also load other files of the folder (a tokenizer, more weights), which this training did
        # not write.
        if {WEIGHTS_NAME, CONFIG_NAME} != self.files.keys():
            raise ValueError(f"files must name {WEIGHTS_NAME} and {CONFIG_NAME}, and no other")
        return self

    def to_bytes(self) -> bytes:
        """Return the manifest file's bytes: canonical JSON without nulls."""
        return canonical_json(self.model_dump(mode="json", exclude_none=True))

    @property
    def precision(self) -> Precision | None:
        """Format of the base's weights while the adapter was trained; None where it is unknown."""
        return "nf4" if self.quant.base_quant is BaseQuant.NF4 else self.trained_dtype

    @property
    def digest(self) -> str:
        """SHA-256 of :meth:`to_bytes`, 64 hex digits."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def adapter_id(self) -> str:
        """Name that the adapter is served under, permanently."""
        return f"{self.name}@{self.digest}"


def parse_manifest(raw: bytes, expected_digest: str) -> AdapterManifest:
    """Parse a manifest, and check it against its known digest.

    Raises:
        ArtifactInvalid: ``ADAPTER_DIGEST_MISMATCH`` or ``ADAPTER_MANIFEST_INVALID``.
    """
    if hashlib.sha256(raw).hexdigest() != expected_digest:
        raise _mismatch(MANIFEST_NAME)
    try:
        manifest = AdapterManifest.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise _broken(".".join(str(part) for part in first["loc"]) or "the top level", first["msg"]) from None
    if manifest.to_bytes() != raw:
        raise _broken("the top level", "it is not canonical JSON, so its digest would not be its name")
    return manifest


def peft_keys(base_key: str) -> tuple[str, str]:
    """Return PEFT's names of A and B for a base tensor ``….weight``."""
    stem = f"base_model.model.{base_key.removesuffix('.weight')}"
    return f"{stem}.lora_A.weight", f"{stem}.lora_B.weight"


def verify_adapter(folder: Path, manifest: AdapterManifest, base_tensors: dict[str, TensorInfo] | None = None) -> None:
    """Check an adapter folder against its manifest: digests, tensor names, shapes, values, PEFT's config.

    Args:
        folder: holds the files that the manifest names.
        manifest: the manifest, which was already checked against its own digest.
        base_tensors: the base model's tensors; when given, every A and B must fit its base tensor.

    Raises:
        ArtifactInvalid: ``ADAPTER_DIGEST_MISMATCH``, ``ADAPTER_SHAPE_MISMATCH``, ``ADAPTER_NOT_SERVABLE``
            or ``ADAPTER_MANIFEST_INVALID``, naming the file or tensor.
    """
    for name, expected in manifest.files.items():
        path = folder / name
        # A link could point to another file after this check.
        if path.is_symlink() or not path.is_file() or digest_file(path) != expected:
            raise _mismatch(name)
    tensors = read_tensors(folder / WEIGHTS_NAME)
    _verify_tensors(tensors, manifest, base_tensors)
    _verify_config(folder / CONFIG_NAME, manifest)
    magnitudes = verify_values(folder / WEIGHTS_NAME, tensors)
    verify_products(map(peft_keys, manifest.base_key_map.values()), magnitudes, manifest.alpha)


def verify_base(manifest: AdapterManifest, base_digests: dict[str, str]) -> None:
    """Check that the adapter was trained on exactly this base.

    Raises:
        ArtifactInvalid: ``ADAPTER_BASE_MISMATCH`` naming the first file that differs.
    """
    for name in sorted(manifest.base_digests.keys() | base_digests.keys()):
        if manifest.base_digests.get(name) != base_digests.get(name):
            raise ArtifactInvalid(
                Code.ADAPTER_BASE_MISMATCH,
                f"The adapter was trained on a different base: {name} differs.",
                remedy=f"Use the base {manifest.base_model} that it was trained on, or train it again on this one.",
                param=name,
            )


def unservable(key: str, value: object) -> ArtifactInvalid:
    """Return the refusal of an adapter with an option that the server would not honour."""
    return ArtifactInvalid(
        Code.ADAPTER_NOT_SERVABLE,
        f"{CONFIG_NAME} has {key}={repr(value)[:MAX_SHOWN]}, which the manifest or vLLM does not allow.",
        remedy="Train a plain LoRA adapter: no DoRA, no bias, no modules_to_save.",
        param=key,
    )


def _verify_tensors(
    tensors: dict[str, TensorInfo], manifest: AdapterManifest, base_tensors: dict[str, TensorInfo] | None
) -> None:
    expected = {key for base_key in manifest.base_key_map.values() for key in peft_keys(base_key)}
    if unmatched := sorted(expected ^ tensors.keys()):
        raise _misshapen(unmatched[0], "is not in both the weights and the manifest")
    for base_key in manifest.base_key_map.values():
        a, b = (tensors[key] for key in peft_keys(base_key))
        if len(a.shape) != 2 or len(b.shape) != 2 or not a.shape[0] == b.shape[1] == manifest.rank:
            raise _misshapen(base_key, f"has A {a.shape} and B {b.shape}, not rank {manifest.rank}")
        if base_tensors is None:
            continue
        if base_key not in base_tensors:
            raise _misshapen(base_key, "is not a tensor of the base model")
        expected_shape = (a.shape[1], b.shape[0]) if is_transposed(base_key) else (b.shape[0], a.shape[1])
        if base_tensors[base_key].shape != expected_shape:
            raise _misshapen(base_key, f"is {base_tensors[base_key].shape} in the base, not {expected_shape}")


def _verify_config(path: Path, manifest: AdapterManifest) -> None:
    try:
        # A longer file is truncated, so that it is invalid JSON and takes little memory.
        with path.open("rb") as file:
            config = json.loads(file.read(MAX_CONFIG_BYTES))
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ArtifactInvalid(
            Code.ADAPTER_MANIFEST_INVALID,
            f"{CONFIG_NAME} is not a JSON object.",
            remedy="Train or import the adapter again.",
            param=CONFIG_NAME,
        )
    required = {"peft_type": "LORA", "r": manifest.rank, "lora_alpha": manifest.alpha, "bias": "none"}
    for key, value in required.items():
        if config.get(key) != value:
            raise unservable(key, config.get(key))
    for key in UNSERVABLE_FEATURES:
        if config.get(key):
            raise unservable(key, config[key])
    if config.get("init_lora_weights") not in (True, None, "gaussian"):
        raise unservable("init_lora_weights", config["init_lora_weights"])


def _broken(where: str, reason: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.ADAPTER_MANIFEST_INVALID,
        f"{MANIFEST_NAME} is invalid at {where}: {reason}.",
        remedy="Train or import the adapter again.",
        param=where,
    )


def _mismatch(name: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.ADAPTER_DIGEST_MISMATCH,
        f"{name} is not the file that was published: its SHA-256 differs, or it is missing.",
        remedy="Restore the adapter's files from a backup, or train it again; a changed adapter is never served.",
        param=name,
    )


def _misshapen(key: str, reason: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.ADAPTER_SHAPE_MISMATCH,
        f"Tensor {key} {reason}.",
        remedy="Train the adapter on the base model that serves it.",
        param=key,
    )


MODEL_MANIFEST_NAME = "model_manifest.json"


class ModelManifest(BaseModel):
    """``model_manifest.json``; SHA-256 of its canonical JSON is the merged model's identity."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal["mens_merged_model"] = "mens_merged_model"
    version: Literal[1] = 1
    base_model: str
    base_digests: dict[str, Sha256]
    adapter_id: str
    base_weights: BaseWeights = Field(BaseWeights.ORIGINAL, description="Which weights the adapter was merged into.")
    template_arguments: TemplateArguments | None = Field(
        None, description="The adapter's template arguments; left out if it has none."
    )
    files: dict[FileName, Sha256]

    def to_bytes(self) -> bytes:
        """Return the manifest file's bytes: canonical JSON without nulls."""
        return canonical_json(self.model_dump(mode="json", exclude_none=True))

    @property
    def digest(self) -> str:
        """SHA-256 of :meth:`to_bytes`, 64 hex digits: the merged model's name in storage."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

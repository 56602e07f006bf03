"""Inputs and results of the preflight: the job request, its files, the machine, the reports. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.artifacts.manifests import Precision
from shared.base_models.config import ModelConfig
from shared.base_models.families import HEAD_FAMILIES, LORA_FAMILIES, Family
from shared.contract.choices import BaseQuant, HeldBase
from shared.contract.contracts import FineTuneContract
from shared.contract.parent import PlannedParent
from shared.contract.plan import ExecutionPlan
from shared.contract.presets import Source
from shared.datasets.report_types import DataReport
from shared.preflight.activations import Recompute
from shared.replicas import ServedBaseName, Weights
from shared.tokenization.supervision_report import SupervisionReport


class PreflightValue(BaseModel):
    """Frozen, closed value: the base of every pydantic model of this package."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A fine-tune job as its caller requests it, before presets and checks.

    Attributes:
        contract: the caller's contract; presets do not change fields that were set (``model_fields_set``).
        preset: a preset's name, or ``auto``.
        domain: a domain profile's name.
        name: left part of the adapter's id; the contract's tag when None.
        train_lines: lines of the training file, when the caller has counted them.
        backend: a training backend's name, which the contract must agree with.
        auto: fields of the contract that an auto rule has set, not the caller.
        has_auto_rules: the API's auto rules decide steps, epochs and rate that the contract leaves open.
        batch_is_step: ``exec.batch_size`` counts the rows of an optimizer step, as OpenAI's ``batch_size`` does, and
            may be cut into micro-batches although the contract names it.
        accepted: the job exists: an earlier preflight, perhaps of an earlier release, has accepted its contract.
        parent: the adapter that ``adapter.continue_from`` names.
    """

    contract: FineTuneContract
    preset: str | None = None
    domain: str | None = None
    name: str | None = None
    train_lines: int | None = None
    backend: str | None = None
    auto: frozenset[str] = frozenset()
    has_auto_rules: bool = False
    batch_is_step: bool = False
    accepted: bool = False
    parent: PlannedParent | None = None


@dataclass(frozen=True, slots=True)
class InputFile:
    """A training, validation or replay file on this machine.

    Attributes:
        lines: its lines, when they have been counted.
        verify: whether to compare its bytes with ``sha256`` while they are read, because storage may have changed since
            the upload.
    """

    file_id: str
    sha256: str
    path: Path
    lines: int | None = None
    verify: bool = False


class ServingLimits(PreflightValue):
    """Settings and facts of the running serving tier.

    Attributes:
        max_lora_rank: largest rank; settings round it up to one of vLLM's own.
        base_digest: digest of the served base (`BaseModelEntry.digest`); None when nothing is known.
        bases: the bases that its replicas serve; empty when nothing is known.
        max_model_len: longest context in tokens; None for the model's own.
        families: architectures that can take an adapter.
        head_families: the families whose untied ``lm_head`` can take one too; empty if a replica runs on a GPU.
        weights: which of the base's weights the replicas serve; None when nothing is known.
    """

    max_lora_rank: int
    base_digest: str | None = None
    bases: frozenset[ServedBaseName] = frozenset()
    max_model_len: int | None = None
    families: frozenset[Family] = LORA_FAMILIES
    head_families: frozenset[Family] = HEAD_FAMILIES
    weights: frozenset[Weights] | None = None

    @property
    def only_twins(self) -> bool:
        """Return true if only the base's twin is known to be served."""
        return self.weights is not None and "original" not in self.weights

    @property
    def only_originals(self) -> bool:
        """Return true if the base is known to be served without its twin."""
        return self.weights is not None and "twin" not in self.weights


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about the machine that runs the job and the tier that serves it; None is unknown.

    Attributes:
        device: ``cpu``, ``cuda`` or ``auto``.
        vram_bytes: memory of the GPU.
        free_bytes: the part of it that other programs have left now.
        devices: GPUs that share a job; a base that fits none of them is held in parts.
        host_bytes: main memory for training on the CPU.
        cores: number of cores of the CPU that trains.
        device_name: name of the GPUs.
        gpu_fault: why a GPU that the driver shows cannot be used; None if it can, and without a GPU.
        origin: source of these facts, in words, for a plan.
        limits: limits of the serving tier.
        tokens_per_second: measured training rate for this base.
        measured_by: the job that was measured.
        other_seconds: seconds that this job took in addition to its training.
        quant_base: the operator's precision if callers leave it open; ``auto``: the rule decides.
        thorough: whether to tokenise every row. A control plane that handles a request tokenises a sample of a large
            file instead, reports that it did, and leaves the rest to the worker.
    """

    device: str = "auto"
    vram_bytes: int | None = None
    free_bytes: int | None = None
    devices: int = 1
    host_bytes: int | None = None
    cores: int | None = None
    device_name: str = ""
    gpu_fault: str | None = None
    origin: str = "no worker has reported"
    limits: ServingLimits | None = None
    tokens_per_second: float | None = None
    measured_by: str | None = None
    other_seconds: float | None = None
    quant_base: BaseQuant = BaseQuant.AUTO
    thorough: bool = True

    def memory(self, *, on_gpu: bool) -> int | None:
        """Return the bytes of the memory that a job trains in: the memory of one GPU, or main memory."""
        return self.vram_bytes if on_gpu else self.host_bytes

    def sharers(self, contract: FineTuneContract, *, on_gpu: bool) -> int:
        """Return the number of GPUs that share a job: at most the rows of a step."""
        return min(self.devices, contract.exec.batch_size * contract.exec.grad_accum) if on_gpu else 1


PRICE_OF_NF4 = (
    "served over the original weights, it loses a part of what was learnt (base shift); over their twin, it loses "
    "nothing"
)


class BasePrecision(PreflightValue):
    """Precision of the frozen base while it is trained, with the reason."""

    precision: Precision
    reason: str
    full_precision_bytes: int = Field(description="Memory of the run over the unquantised base, by the estimate.")
    room_bytes: int | None = Field(description="Memory that the run may use; null: the machine's memory is not known.")

    def describe(self) -> str:
        """Describe the base's precision in one line, for an operator, and, for NF4, its cost in accuracy."""
        if self.precision == "nf4":
            return f"base held in NF4, because {self.reason}; {PRICE_OF_NF4}"
        return f"base held in {self.precision}, because {self.reason}; served base = trained base"

    @property
    def base_quant(self) -> HeldBase:
        """The precision in the contract's terms."""
        return BaseQuant.NF4 if self.precision == "nf4" else BaseQuant.NONE


class PlannedDevice(PreflightValue):
    """The device that a job is planned for, and the source of this information."""

    device: Literal["cpu", "cuda", "auto"] = Field(description="auto: not known; memory is then that of a GPU.")
    source: str

    def describe(self) -> str:
        """Describe the device in one line for an operator."""
        name = {"cpu": "CPU", "cuda": "GPU"}.get(self.device, "not known, planned as a GPU")
        return f"{name} ({self.source})"


class TrainingTime(PreflightValue):
    """Expected seconds of training alone, and the basis of the figure."""

    seconds: float
    other_seconds: float | None = Field(
        None, description="Time of loading, evaluation and publishing, as in the measured job; null: not known."
    )
    basis: Literal["measured", "flops", "steps"] = Field(
        description="Speed of an earlier job; FLOPs of the model over the device's speed; 200 ms per step."
    )
    reason: str

    def describe(self) -> str:
        """Describe in one line for an operator what the estimate covers, and its basis."""
        training = f"training about {length_of(self.seconds)}, {self.reason}"
        if self.other_seconds is None:
            return f"{training}; without loading, evaluation and publishing"
        other = f"about {length_of(self.other_seconds)} for loading, evaluation and publishing"
        return f"{training}; and {other}, as in that job"

    @property
    def whole_seconds(self) -> float:
        """Seconds of the whole job, as far as they are known."""
        return self.seconds + (self.other_seconds or 0.0)


def length_of(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if hours < 2 else f"{hours:.1f} h"


GIB = 1 << 30
PREFLIGHT_SCHEMA = "vox.mens.preflight.v0"


class Coverage(PreflightValue):
    """Number of expected tensor names that were found; ``missing`` is capped."""

    expected: int
    matched: int
    missing: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return 0 < self.expected == self.matched


class ModelReport(PreflightValue):
    """Result of checking the model folder.

    Attributes:
        namespace: prefix of the layers' names in the weights.
        middle: one key per layer.
        inventory: every tensor of the language model, right shape and dtype.
        parameters: number of parameters of the language model as the config describes it; a tied head counts once.
        bytes_by_dtype: bytes of everything in the shards, by safetensors' dtype.
    """

    config: ModelConfig
    namespace: str
    shards: tuple[str, ...]
    tensors: int
    middle: Coverage
    inventory: Coverage
    parameters: int
    bytes_by_dtype: dict[str, int]
    notes: tuple[str, ...]


class Vram(PreflightValue):
    """Device memory by part, at its peak: a micro-batch of full-length rows; on a CPU, of a step's real rows."""

    quantised_weights: int = Field(description="NF4 weights with their quantisation state.")
    other_weights: int = Field(
        description=(
            "Weights that are not quantised, in compute dtype: embeddings, head, norms, biases; all of an "
            "unquantised base."
        )
    )
    dequantised_cache: int = Field(
        description="On a CPU: the NF4 weights dequantised, kept where they take a small part of its memory."
    )
    adapter: int = Field(description="LoRA parameters, fp32.")
    gradients: int
    optimizer: int = Field(description="AdamW's two moments: fp32, or 8 bit with their scales.")
    activations: int
    logits: int = Field(description="Logits and their loss.")
    heap: int = Field(
        description="On a CPU, freed memory that the C library does not return: a measured share; on a GPU, 0."
    )
    runtime: int = Field(
        description="On a GPU, a fixed allowance; on a CPU, the measured memory of Python and its libraries."
    )

    @property
    def total(self) -> int:
        return int(sum(self.model_dump().values()))


class Disk(PreflightValue):
    """Storage of a job by part."""

    base: int = Field(description="The base model's weights at its own dtype.")
    checkpoints: int = Field(description="All that are kept at a time.")
    adapter: int
    merge: int = Field(description="A merged model, if one is made.")

    @property
    def total(self) -> int:
        return int(sum(self.model_dump().values()))


class Configuration(PreflightValue):
    """The settings that decide memory."""

    batch_size: int
    grad_accum: int
    seq_len: int
    recompute: Recompute = Recompute.NONE
    sequences: int = Field(1, description="Sequences of a row: two for a pair of answers.")
    holders: int = Field(1, description="GPUs that each hold a part of the frozen base; 1: it is whole on each.")


class NearestFit(PreflightValue):
    """The nearest configuration that fits."""

    configuration: Configuration
    vram_bytes: int
    changes_result: bool = Field(description="True when rows had to be shortened; else the result is the same.")
    advice: str


class Estimate(PreflightValue):
    """Needs of a job. ``fits`` is None if the device is unknown; ``time`` has the basis of ``seconds``."""

    configuration: Configuration
    vram: Vram
    vram_bytes: int
    vram_budget: int | None
    disk: Disk
    disk_bytes: int
    parameters: int
    trainable_parameters: int
    optimizer_steps: int
    tokens: int | None = Field(description="Trained tokens of all epochs; None when the mean length is not known.")
    max_tokens: int
    seconds: float
    time: TrainingTime
    fits: bool | None
    nearest_fit: NearestFit | None
    notes: tuple[str, ...]

    def describe_memory(self) -> str:
        """Describe in one line the estimated peak, and the bound that decides whether the job fits."""
        peak = f"estimated peak {self.vram_bytes / GIB:.2f} GiB"
        if self.vram_budget is None:
            return f"{peak}; the bound is not known"
        fits = "fits" if self.fits else "does not fit as configured"
        return f"{peak}, at most {self.vram_budget / GIB:.2f} GiB may be used: {fits}"

    @property
    def possible(self) -> bool:
        """Return true if the job fits, or the trainer makes it fit with the same result, or the device is unknown."""
        return self.fits is not False or (self.nearest_fit is not None and not self.nearest_fit.changes_result)


class Preflight(PreflightValue):
    """Result of the preflight, with the plan.

    Attributes:
        device: the device that it is planned for.
        sources: the source of each field of the contract.
        warnings: row contents that the training will not reproduce as written, and held-out rows that are trained on
            too; the notes have them too.
        advice: values that the caller left open and had better set for this base; the notes have it too.
        notes: allowed but noteworthy settings, for the operator.
    """

    plan: ExecutionPlan
    model: ModelReport
    data: DataReport
    supervision: SupervisionReport
    estimate: Estimate
    precision: BasePrecision
    device: PlannedDevice
    sources: dict[str, Source]
    warnings: list[str]
    advice: list[str]
    notes: list[str]

    def record(self) -> dict[str, Any]:
        """Return the content of ``training-preflight.json``: the original's four fields, and each result under its
        name.
        """
        results: dict[str, BaseModel] = {
            "model": self.model,
            "data": self.data,
            "supervision": self.supervision,
            "estimate": self.estimate,
            "precision": self.precision,
            "device": self.device,
        }
        return {
            "schema_version": PREFLIGHT_SCHEMA,
            "contract_digest": self.plan.contract_digest,
            "execution_kernel": self.plan.execution_kernel,
            "warnings": self.warnings,
            "notes": self.notes,
            **{name: result.model_dump(mode="json") for name, result in results.items()},
        }

"""Enumerated fields of a contract, with every accepted spelling of their values."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


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
    """Precision of the frozen base in memory; ``auto``, which plans never contain, is resolved from the machine's
    memory.
    """

    AUTO = "auto"
    NONE = "none"
    NF4 = "nf4"


class Kernel(StrEnum):
    """A training kernel. The first two are the original system's; ``burn_lora`` can be planned but not run."""

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
    """Weights of the base that a merge starts from."""

    ORIGINAL = "original"
    DEQUANT_NF4 = "dequant_nf4"


class MethodType(StrEnum):
    """The training method: on answers, on pairs of a preferred and a rejected answer, or on answers that are each rated good
    or bad; the last name is reserved.
    """

    SUPERVISED = "supervised"
    DPO = "dpo"
    KTO = "kto"
    REINFORCEMENT = "reinforcement"


class PreferenceLoss(StrEnum):
    """The loss of a pair: by the difference of log-probabilities, of their means per token, or IPO's squared distance; or
    that of a rated answer.
    """

    SIGMOID = "sigmoid"
    SIGMOID_NORM = "sigmoid_norm"
    IPO = "ipo"
    KTO = "kto"


class Smoothing(StrEnum):
    """Form in which label smoothing enters the loss: cDPO's mixture, or its unbiased form (robust DPO)."""

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
    """``paged_adamw_8bit`` keeps AdamW's moments in 8 bit. Despite its name it pages nothing to the host."""

    ADAMW = "adamw"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"


class OptimizerExperiment(StrEnum):
    OFF = "off"
    MUON_CLIP_LIKE = "muon_clip_like"


class Device(StrEnum):
    """Device that a job trains on: ``auto`` takes the GPU if the worker has one."""

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


class DataMode(StrEnum):
    """Handling of invalid lines in a data file: strict refuses the file, lenient skips and counts the line."""

    STRICT = "strict"
    LENIENT = "lenient"


class ThoughtsRule(StrEnum):
    """Use of an answer's thoughts (``reasoning_content``) in training."""

    LEARN = "learn"
    CONTEXT = "context"
    DROP = "drop"


def backend_key(name: str) -> str:
    """Return a backend's name as :data:`BACKENDS` spells it."""
    return name.strip().lower().replace("_", "-")

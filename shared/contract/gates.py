"""Gates: well-formed contracts that must not run, each with one code and one message for whoever reads it.

Pure: what a gate needs beside the contract is in a :class:`GateContext`. The order is the original system's, and the
first gate that fails decides the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.contract import (
    MAX_CE_LAST_K,
    AdapterMethod,
    BaseQuant,
    DeploymentTarget,
    Device,
    FineTuneContract,
    OptimizerExperiment,
    TokenizerMode,
)
from shared.errors import Code, ContractRejected
from shared.flat import Kernel, parse_backend


@dataclass(frozen=True)
class Refusal:
    """What a gate says. ``message`` is formatted with the contract ``c`` and the facts ``x``."""

    param: str
    message: str
    remedy: str


REFUSALS: dict[Code, Refusal] = {
    Code.NF4_REQUIRES_QLORA: Refusal(
        "adapter.method",
        "quant.base is nf4, but adapter.method is {c.adapter.method}: only QLoRA trains over an NF4 base.",
        "Set adapter.method to qlora.",
    ),
    Code.QLORA_REQUIRES_HF_TOKENIZER: Refusal(
        "data.tokenizer_mode",
        "adapter.method is qlora, but data.tokenizer_mode is {c.data.tokenizer_mode}: QLoRA needs the base's own tokenizer.",
        "Set data.tokenizer_mode to hf.",
    ),
    Code.BURN_HF_CONFIG_REQUIRED: Refusal(
        "model.config_json",
        "adapter.method is lora with the hf tokenizer, but the base's config.json is not known.",
        "Set adapter.method to qlora, or register the base with its config.json.",
    ),
    Code.BURN_HF_GPT2_ONLY: Refusal(
        "adapter.method",
        "adapter.method is lora with the hf tokenizer, which takes GPT-2 layouts only; the base's is {x.layout}.",
        "Set adapter.method to qlora: it takes Llama, Mistral and Qwen.",
    ),
    Code.MOBILE_EDGE_REJECTS_FULL_PROXY_STACK: Refusal(
        "exec.qlora_require_full_proxy_stack",
        "artifact.deployment_target is mobile_edge, but exec.qlora_require_full_proxy_stack is true.",
        "Set exec.qlora_require_full_proxy_stack to false.",
    ),
    Code.MOBILE_EDGE_SEQ_LEN: Refusal(
        "exec.seq_len",
        "artifact.deployment_target is mobile_edge, but exec.seq_len is {c.exec.seq_len}; at most 512 is allowed.",
        "Set exec.seq_len to 512 or less, or take the preset mobile_edge.",
    ),
    Code.MOBILE_EDGE_RANK: Refusal(
        "adapter.rank",
        "artifact.deployment_target is mobile_edge, but adapter.rank is {c.adapter.rank}; at most 32 is allowed.",
        "Set adapter.rank to 32 or less, or take the preset mobile_edge.",
    ),
    Code.MOBILE_EDGE_BATCH_SIZE: Refusal(
        "exec.batch_size",
        "artifact.deployment_target is mobile_edge, but exec.batch_size is {c.exec.batch_size}; only 1 is allowed.",
        "Set exec.batch_size to 1, or take the preset mobile_edge.",
    ),
    Code.KERNEL_MISMATCH: Refusal(
        "backend",
        "The backend {x.force_kernel} was asked for, but the contract (adapter {c.adapter.method}, base quantisation"
        " {c.quant.base}) means another.",
        "Leave the backend out, or change adapter.method and quant.base to suit it.",
    ),
    Code.BURN_LORA_REJECTED: Refusal(
        "adapter.method",
        "adapter.method is lora: the Burn LoRA lane can be planned, but is no longer run.",
        "Move to QLoRA: set adapter.method to qlora, quant.base to nf4, data.tokenizer_mode to hf, and name the base in"
        " model.hf_repo.",
    ),
    Code.MOBILE_EDGE_REQUIRES_CPU: Refusal(
        "device.device",
        "artifact.deployment_target is mobile_edge, but the device is {x.device}; it must be cpu.",
        "Set device.device to cpu, or take the preset mobile_edge.",
    ),
    Code.GPU_REQUIRED: Refusal(
        "device.require_gpu",
        "The contract wants a GPU (device.require_gpu is true, or device.device is cuda without"
        " device.allow_cpu_fallback), but the job would run on the CPU.",
        "Run it where there is a GPU; or set device.require_gpu to false and device.allow_cpu_fallback to true.",
    ),
    Code.PROXY_STACK_CONFLICT: Refusal(
        "exec.qlora_allow_partial_proxy_stack",
        "exec.qlora_allow_partial_proxy_stack and exec.qlora_require_full_proxy_stack are both true.",
        "Set one of the two to false.",
    ),
    Code.LM_HEAD_ONLY_FULL_STACK: Refusal(
        "exec.qlora_lm_head_only",
        "exec.qlora_lm_head_only is true, but the full stack is required (as always with QLoRA on CUDA).",
        "Set exec.qlora_lm_head_only to false.",
    ),
    Code.LM_HEAD_ONLY_PROXY_LAYERS: Refusal(
        "exec.qlora_proxy_max_layers",
        "exec.qlora_lm_head_only is true, but exec.qlora_proxy_max_layers is {c.exec.qlora_proxy_max_layers}.",
        "Leave both out: the full graph is trained.",
    ),
    Code.CE_LAST_K_TOO_LARGE: Refusal(
        "exec.qlora_ce_last_k",
        "exec.qlora_ce_last_k is {c.exec.qlora_ce_last_k}; at most 64 and at most exec.seq_len ({c.exec.seq_len}) is allowed.",
        "Lower it, or set it to 0 for the loss on every assistant token.",
    ),
    Code.CORPUS_TOO_SMALL: Refusal(
        "data.train_file",
        "The training file has {x.rows} rows that can be trained on.",
        "Add rows (100 or more is advised), or lower data.min_rating.",
    ),
    Code.OPTIMIZER_EXPERIMENT_OFF: Refusal(
        "optimizer.experiment",
        "optimizer.experiment is {c.optimizer.experiment}, a name that the original reserved and never gave an optimizer;"
        " this release has none behind MENS_EXPERIMENTAL_OPTIMIZER either.",
        "Set optimizer.experiment to off; optimizer.kind chooses among the optimizers that there are.",
    ),
    Code.LM_HEAD_ONLY_UNSUPPORTED: Refusal(
        "exec.qlora_lm_head_only",
        "exec.qlora_lm_head_only is true, but only the full graph is trained.",
        "Set exec.qlora_lm_head_only to false.",
    ),
    Code.PARTIAL_DEPTH_UNSUPPORTED: Refusal(
        "exec.qlora_proxy_max_layers",
        "exec.qlora_proxy_max_layers is {c.exec.qlora_proxy_max_layers}, which does not cover the base's layers"
        " ({x.depth}); every layer is always trained.",
        "Leave exec.qlora_proxy_max_layers out.",
    ),
}

MIN_CORPUS_PAIRS = 100
MOBILE_LIMITS = {"exec.seq_len": 512, "adapter.rank": 32, "exec.batch_size": 1}
GPT2_MODEL_TYPE = "gpt2"
QWEN35_LIKE = ("qwen", "llama", "mistral")


@dataclass(frozen=True)
class GateContext:
    """Facts beside the contract; None is unknown.

    Attributes:
        device: what ``auto`` comes to on the machine: ``cpu``, ``cuda``, or ``auto`` when that is not known yet.
        model_type: of the base's config.json.
        n_layers: of the base.
        rows: rows that can be trained on.
        experimental_optimizer: whether the installation has optimizers to try out; no release has yet.
        force_kernel: a backend's name that the contract must agree with.
    """

    device: str
    model_type: str | None
    n_layers: int | None
    rows: int | None
    experimental_optimizer: bool = False
    force_kernel: str | None = None

    @property
    def layout(self) -> str:
        """The original's bucket of an architecture, and its model type."""
        kind = self.model_type or ""
        bucket = "Qwen35-like" if any(name in kind for name in QWEN35_LIKE) else "another"
        return f"{'GPT-2' if kind == GPT2_MODEL_TYPE else bucket} ({kind or 'unknown model_type'})"

    @property
    def depth(self) -> str:
        return "an unknown number" if self.n_layers is None else str(self.n_layers)


UNKNOWN = GateContext(device="auto", model_type=None, n_layers=None, rows=None)
"""Nothing is known but the contract."""


def infer_kernel(contract: FineTuneContract) -> Kernel:
    """The kernel that a contract means: NF4 or QLoRA is Candle's, the rest is Burn's."""
    candle = contract.quant.base is BaseQuant.NF4 or contract.adapter.method is AdapterMethod.QLORA
    return Kernel.CANDLE_QLORA if candle else Kernel.BURN_LORA


def target_device(contract: FineTuneContract, context: GateContext) -> Device:
    """The device the contract asks for, or what ``auto`` comes to."""
    return Device(context.device) if contract.device.device is Device.AUTO else contract.device.device


def effective_full_stack(contract: FineTuneContract, context: GateContext) -> bool:
    """Whether every layer must be trained: when required, and by default for QLoRA on CUDA; partial stacks opt out."""
    on_cuda = target_device(contract, context) is Device.CUDA
    strict = on_cuda and contract.adapter.method is AdapterMethod.QLORA
    return not contract.exec.qlora_allow_partial_proxy_stack and (
        contract.exec.qlora_require_full_proxy_stack or strict
    )


def check_gates(contract: FineTuneContract, context: GateContext) -> list[str]:
    """Let a contract through.

    Returns:
        What the operator should know although nothing forbids it.

    Raises:
        ContractRejected: with the code of the first gate that fails; ``UNKNOWN_BACKEND`` when ``force_kernel`` is none.
    """
    for code, fails in GATES:
        if fails(contract, context):
            refusal = REFUSALS[code]
            message = refusal.message.format(c=contract, x=context)
            raise ContractRejected(code, message, remedy=refusal.remedy, param=refusal.param)
    return _notes(contract, context)


def _notes(contract: FineTuneContract, context: GateContext) -> list[str]:
    notes = _ineffective(contract)
    if contract.device.device is Device.CUDA and context.device == Device.CPU:
        notes.append("device.device is cuda, but there is no GPU: the job falls back to the CPU.")
    if context.rows is not None and context.rows < MIN_CORPUS_PAIRS:
        notes.append(f"The training file has {context.rows} rows; {MIN_CORPUS_PAIRS} or more is advised.")
    if _mobile(contract):
        notes.append("The adapter keeps to the mobile limits, but no on-device runtime or export is part of Mens.")
    return notes


def _ineffective(contract: FineTuneContract) -> list[str]:
    """Fields that were set and change nothing, because the switch they depend on is off."""
    if contract.exec.curriculum_schedule and not contract.curriculum.enabled:
        return ["exec.curriculum_schedule has no effect: curriculum.enabled is false."]
    return []


def _mobile(c: FineTuneContract) -> bool:
    return c.artifact.deployment_target is DeploymentTarget.MOBILE_EDGE


def _lora(c: FineTuneContract) -> bool:
    return c.adapter.method is AdapterMethod.LORA


def _lora_hf(c: FineTuneContract) -> bool:
    return _lora(c) and c.data.tokenizer_mode is TokenizerMode.HF


def _no_config(c: FineTuneContract, x: GateContext) -> bool:
    return _lora_hf(c) and c.model.config_json is None and x.model_type is None


def _no_tokenizer(c: FineTuneContract, _: GateContext) -> bool:
    return c.adapter.method is AdapterMethod.QLORA and c.data.tokenizer_mode is not TokenizerMode.HF


def _other_kernel(c: FineTuneContract, x: GateContext) -> bool:
    return x.force_kernel is not None and parse_backend(x.force_kernel) is not infer_kernel(c)


def _no_gpu(c: FineTuneContract, x: GateContext) -> bool:
    wanted = c.device.require_gpu or (c.device.device is Device.CUDA and not c.device.allow_cpu_fallback)
    return wanted and Device.CPU in (target_device(c, x), x.device)


def _shallow(c: FineTuneContract, x: GateContext) -> bool:
    cap = c.exec.qlora_proxy_max_layers
    return cap is not None and (x.n_layers is None or cap < x.n_layers)


Gate = Callable[[FineTuneContract, GateContext], bool]

GATES: tuple[tuple[Code, Gate], ...] = (
    (Code.NF4_REQUIRES_QLORA, lambda c, _: c.quant.base is BaseQuant.NF4 and _lora(c)),
    (Code.QLORA_REQUIRES_HF_TOKENIZER, _no_tokenizer),
    (Code.BURN_HF_CONFIG_REQUIRED, _no_config),
    (Code.BURN_HF_GPT2_ONLY, lambda c, x: _lora_hf(c) and x.model_type != GPT2_MODEL_TYPE),
    (Code.MOBILE_EDGE_REJECTS_FULL_PROXY_STACK, lambda c, _: _mobile(c) and c.exec.qlora_require_full_proxy_stack),
    (Code.MOBILE_EDGE_SEQ_LEN, lambda c, _: _mobile(c) and c.exec.seq_len > MOBILE_LIMITS["exec.seq_len"]),
    (Code.MOBILE_EDGE_RANK, lambda c, _: _mobile(c) and c.adapter.rank > MOBILE_LIMITS["adapter.rank"]),
    (Code.MOBILE_EDGE_BATCH_SIZE, lambda c, _: _mobile(c) and c.exec.batch_size > MOBILE_LIMITS["exec.batch_size"]),
    (Code.KERNEL_MISMATCH, _other_kernel),
    (Code.BURN_LORA_REJECTED, lambda c, _: _lora(c)),
    (Code.MOBILE_EDGE_REQUIRES_CPU, lambda c, x: _mobile(c) and target_device(c, x) is not Device.CPU),
    (Code.GPU_REQUIRED, _no_gpu),
    (
        Code.PROXY_STACK_CONFLICT,
        lambda c, _: c.exec.qlora_allow_partial_proxy_stack and c.exec.qlora_require_full_proxy_stack,
    ),
    (Code.LM_HEAD_ONLY_FULL_STACK, lambda c, x: c.exec.qlora_lm_head_only and effective_full_stack(c, x)),
    (
        Code.LM_HEAD_ONLY_PROXY_LAYERS,
        lambda c, _: c.exec.qlora_lm_head_only and (c.exec.qlora_proxy_max_layers or 0) > 0,
    ),
    (Code.CE_LAST_K_TOO_LARGE, lambda c, _: c.exec.qlora_ce_last_k > min(MAX_CE_LAST_K, c.exec.seq_len)),
    (Code.CORPUS_TOO_SMALL, lambda _, x: x.rows is not None and x.rows < 1),
    (Code.OPTIMIZER_EXPERIMENT_OFF, lambda c, x: _experiment(c) and not x.experimental_optimizer),
    (Code.LM_HEAD_ONLY_UNSUPPORTED, lambda c, _: c.exec.qlora_lm_head_only),
    (Code.PARTIAL_DEPTH_UNSUPPORTED, _shallow),
)
"""Every gate, in the order in which they are tried."""


def _experiment(c: FineTuneContract) -> bool:
    return c.optimizer.experiment is not OptimizerExperiment.OFF

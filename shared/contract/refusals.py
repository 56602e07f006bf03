"""Refusals: the rules for well-formed contracts that must not run. One :class:`Refusal` each; ``REFUSALS`` is their
order.

Pure: the facts that a refusal needs besides the contract are in a :class:`RefusalContext`. The order is the original
system's, and the first refusal that applies decides the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.contract.base_quant import pair_of
from shared.contract.choices import (
    AdapterMethod,
    BaseQuant,
    DeploymentTarget,
    Device,
    Kernel,
    OptimizerExperiment,
    TokenizerMode,
)
from shared.contract.contracts import FineTuneContract
from shared.contract.flat_keys import parse_backend
from shared.contract.sections import MAX_CE_LAST_K
from shared.errors import Code, ContractRejected

MIN_CORPUS_PAIRS = 100
MOBILE_LIMITS = {"exec.seq_len": 512, "adapter.rank": 32, "exec.batch_size": 1}
GPT2_MODEL_TYPE = "gpt2"
QWEN35_LIKE = ("qwen", "llama", "mistral")


@dataclass(frozen=True)
class RefusalContext:
    """Facts about machine, base and data; None is unknown.

    Attributes:
        device: meaning of ``auto`` on the machine: ``cpu``, ``cuda``, or ``auto`` when that is not known yet.
        model_type: `model_type` of the base's config.json.
        n_layers: the base's number of layers.
        rows: rows that can be trained on.
        experimental_optimizer: whether the installation has experimental optimizers; no release has any yet.
        force_kernel: a backend's name that the contract must agree with.
        proxy_stack: number of output projections of layers in the base's weights, and the number that its config
            implies.
        accepted: this or an earlier release has accepted the contract and stored its plan. Statements in it that do not
            affect the training are not refused again.
        gpu_fault: why the machine's GPU cannot be used; None if it can, and without a GPU.
    """

    device: str
    model_type: str | None
    n_layers: int | None
    rows: int | None
    experimental_optimizer: bool = False
    force_kernel: str | None = None
    proxy_stack: tuple[int, int] | None = None
    accepted: bool = False
    gpu_fault: str | None = None

    @property
    def layout(self) -> str:
        """The original's group for an architecture, and its model type."""
        kind = self.model_type or ""
        bucket = "Qwen35-like" if any(name in kind for name in QWEN35_LIKE) else "another"
        return f"{'GPT-2' if kind == GPT2_MODEL_TYPE else bucket} ({kind or 'unknown model_type'})"

    @property
    def depth(self) -> str:
        """The base's number of layers, for a message."""
        return "an unknown number" if self.n_layers is None else str(self.n_layers)


UNKNOWN = RefusalContext(device="auto", model_type=None, n_layers=None, rows=None)
"""Context in which only the contract is known."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason why a well-formed contract must not run.

    Attributes:
        code: the error's code.
        param: the field that the error names.
        applies: whether the contract is refused.
        message: formatted with the contract ``c`` and the facts ``x``.
        remedy: what to do about it.
    """

    code: Code
    param: str
    applies: Callable[[FineTuneContract, RefusalContext], bool]
    message: str
    remedy: str


def check_refusals(contract: FineTuneContract, context: RefusalContext) -> list[str]:
    """Check a contract against every refusal, in order.

    Returns:
        Notes for the operator on allowed but noteworthy settings.
    """
    for refusal in REFUSALS:
        if refusal.applies(contract, context):
            message = refusal.message.format(c=contract, x=context)
            raise ContractRejected(refusal.code, message, remedy=refusal.remedy, param=refusal.param)
    notes = []
    if contract.exec.curriculum_schedule and not contract.curriculum.enabled:
        notes.append("exec.curriculum_schedule has no effect: curriculum.enabled is false.")
    if contract.device.device is Device.CUDA and context.device == Device.CPU:
        reason = (context.gpu_fault or "the machine has no GPU").rstrip(".")
        notes.append(f"device.device is cuda, but {reason}: the job falls back to the CPU.")
    if context.rows is not None and context.rows < MIN_CORPUS_PAIRS:
        notes.append(f"The training file has {context.rows} rows; {MIN_CORPUS_PAIRS} or more is advised.")
    if not contract.artifact.allow_placeholder_attention_merge:
        notes.append(
            "artifact.allow_placeholder_attention_merge is false, which changes nothing: a merge always includes every "
            "tensor."
        )
    if _is_mobile(contract):
        notes.append("The adapter keeps to the mobile limits, but Mens has no on-device runtime and no export for one.")
    return notes


def infer_kernel(contract: FineTuneContract, context: RefusalContext = UNKNOWN) -> Kernel:
    """Return the kernel of a contract: Candle's for NF4 or QLoRA; for LoRA Burn's if a backend names it, otherwise
    PEFT's.
    """
    method, base = pair_of(contract)
    if base is BaseQuant.NF4 or method is AdapterMethod.QLORA:
        return Kernel.CANDLE_QLORA
    return Kernel.BURN_LORA if _is_burn(contract, context) else Kernel.PEFT_LORA


def target_device(contract: FineTuneContract, context: RefusalContext) -> Device:
    """Return the device that the contract names; ``auto`` is resolved."""
    return Device(context.device) if contract.device.device is Device.AUTO else contract.device.device


def effective_full_stack(contract: FineTuneContract, context: RefusalContext) -> bool:
    """Return whether every layer must be trained: if required, and by default for QLoRA on CUDA; partial stacks opt
    out.
    """
    on_cuda = target_device(contract, context) is Device.CUDA
    strict = on_cuda and not _is_lora(contract)
    return not contract.exec.qlora_allow_partial_proxy_stack and (
        contract.exec.qlora_require_full_proxy_stack or strict
    )


def _needs_gpu(c: FineTuneContract) -> bool:
    return c.device.require_gpu or (c.device.device is Device.CUDA and not c.device.allow_cpu_fallback)


def _is_mobile(c: FineTuneContract) -> bool:
    return c.artifact.deployment_target is DeploymentTarget.MOBILE_EDGE


def _is_lora(c: FineTuneContract) -> bool:
    return pair_of(c)[0] is AdapterMethod.LORA


def _backends(c: FineTuneContract, x: RefusalContext) -> list[Kernel]:
    """Return the backends that contract and caller name."""
    forced = [] if x.force_kernel is None else [parse_backend(x.force_kernel)]
    return [*forced, *([c.exec.backend] if c.exec.backend else [])]


def _is_burn(c: FineTuneContract, x: RefusalContext) -> bool:
    return _is_lora(c) and Kernel.BURN_LORA in _backends(c, x)


def _is_hf_burn(c: FineTuneContract, x: RefusalContext) -> bool:
    return _is_burn(c, x) and c.data.tokenizer_mode is TokenizerMode.HF


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        Code.NF4_REQUIRES_QLORA,
        "adapter.method",
        lambda c, _: pair_of(c)[1] is BaseQuant.NF4 and _is_lora(c),
        "quant.base is nf4, but adapter.method is {c.adapter.method}: only QLoRA trains over an NF4 base.",
        "Set adapter.method to qlora.",
    ),
    Refusal(
        Code.QLORA_REQUIRES_HF_TOKENIZER,
        "data.tokenizer_mode",
        lambda c, _: not _is_lora(c) and c.data.tokenizer_mode is not TokenizerMode.HF,
        "The base is tuned by QLoRA, but data.tokenizer_mode is {c.data.tokenizer_mode}: QLoRA needs the base's own "
        "tokenizer.",
        "Set data.tokenizer_mode to hf.",
    ),
    Refusal(
        Code.BURN_HF_CONFIG_REQUIRED,
        "model.config_json",
        lambda c, x: _is_hf_burn(c, x) and c.model.config_json is None and x.model_type is None,
        "The backend is Burn LoRA with the hf tokenizer, but the base's config.json is not known.",
        "Leave the backend out to train plain LoRA, or register the base with its config.json.",
    ),
    Refusal(
        Code.BURN_HF_GPT2_ONLY,
        "adapter.method",
        lambda c, x: _is_hf_burn(c, x) and x.model_type != GPT2_MODEL_TYPE,
        "The backend is Burn LoRA with the hf tokenizer, which takes GPT-2 layouts only; the base's is {x.layout}.",
        "Leave the backend out: plain LoRA (quant.base none) and QLoRA (quant.base nf4) take Llama, Mistral and Qwen.",
    ),
    Refusal(
        Code.MOBILE_EDGE_REJECTS_FULL_PROXY_STACK,
        "exec.qlora_require_full_proxy_stack",
        lambda c, _: _is_mobile(c) and c.exec.qlora_require_full_proxy_stack,
        "artifact.deployment_target is mobile_edge, but exec.qlora_require_full_proxy_stack is true.",
        "Set exec.qlora_require_full_proxy_stack to false.",
    ),
    Refusal(
        Code.MOBILE_EDGE_SEQ_LEN,
        "exec.seq_len",
        lambda c, _: _is_mobile(c) and c.exec.seq_len > MOBILE_LIMITS["exec.seq_len"],
        "artifact.deployment_target is mobile_edge, but exec.seq_len is {c.exec.seq_len}; at most 512 is allowed.",
        "Set exec.seq_len to 512 or less, or take the preset mobile_edge.",
    ),
    Refusal(
        Code.MOBILE_EDGE_RANK,
        "adapter.rank",
        lambda c, _: _is_mobile(c) and c.adapter.rank > MOBILE_LIMITS["adapter.rank"],
        "artifact.deployment_target is mobile_edge, but adapter.rank is {c.adapter.rank}; at most 32 is allowed.",
        "Set adapter.rank to 32 or less, or take the preset mobile_edge.",
    ),
    Refusal(
        Code.MOBILE_EDGE_BATCH_SIZE,
        "exec.batch_size",
        lambda c, _: _is_mobile(c) and c.exec.batch_size > MOBILE_LIMITS["exec.batch_size"],
        "artifact.deployment_target is mobile_edge, but exec.batch_size is {c.exec.batch_size}; only 1 is allowed.",
        "Set exec.batch_size to 1, or take the preset mobile_edge.",
    ),
    Refusal(
        Code.KERNEL_MISMATCH,
        "backend",
        lambda c, x: any(named is not infer_kernel(c, x) for named in _backends(c, x)),
        "The contract (adapter.method {c.adapter.method}, quant.base {c.quant.base}) does not match the requested"
        " backend (backend {x.force_kernel}, exec.backend {c.exec.backend}).",
        "Leave the backend out, or change adapter.method and quant.base to match it.",
    ),
    Refusal(
        Code.BURN_LORA_REJECTED,
        "adapter.method",
        _is_burn,
        "The Burn LoRA backend can be planned, but is no longer run.",
        "Leave the backend out: adapter.method lora with quant.base none trains LoRA over the unquantised base. Or "
        "move to"
        " QLoRA: set adapter.method to qlora, quant.base to nf4, data.tokenizer_mode to hf, and name the base in"
        " model.hf_repo.",
    ),
    Refusal(
        Code.MOBILE_EDGE_REQUIRES_CPU,
        "device.device",
        lambda c, x: _is_mobile(c) and target_device(c, x) is not Device.CPU,
        "artifact.deployment_target is mobile_edge, but the device is {x.device}; it must be cpu.",
        "Set device.device to cpu, or take the preset mobile_edge.",
    ),
    Refusal(
        Code.GPU_UNUSABLE,
        "device.device",
        lambda c, x: (
            x.gpu_fault is not None
            and c.device.device is not Device.CPU
            and (c.device.device is Device.AUTO or _needs_gpu(c))
        ),
        "{x.gpu_fault}",
        "Correct it and restart the worker, or set device.device to cpu to train without the GPU.",
    ),
    Refusal(
        Code.GPU_REQUIRED,
        "device.require_gpu",
        lambda c, x: _needs_gpu(c) and Device.CPU in (target_device(c, x), x.device),
        "The contract requires a GPU (device.require_gpu is true, or device.device is cuda without"
        " device.allow_cpu_fallback), but the job would run on the CPU.",
        "Run it on a machine with a GPU, or set device.require_gpu to false and device.allow_cpu_fallback to true.",
    ),
    Refusal(
        Code.PROXY_STACK_CONFLICT,
        "exec.qlora_allow_partial_proxy_stack",
        lambda c, _: c.exec.qlora_allow_partial_proxy_stack and c.exec.qlora_require_full_proxy_stack,
        "exec.qlora_allow_partial_proxy_stack and exec.qlora_require_full_proxy_stack are both true.",
        "Set one of the two to false.",
    ),
    Refusal(
        Code.LM_HEAD_ONLY_FULL_STACK,
        "exec.qlora_lm_head_only",
        lambda c, x: c.exec.qlora_lm_head_only and effective_full_stack(c, x),
        "exec.qlora_lm_head_only is true, but the full stack is required (as always with QLoRA on CUDA).",
        "Set exec.qlora_lm_head_only to false.",
    ),
    Refusal(
        Code.LM_HEAD_ONLY_PROXY_LAYERS,
        "exec.qlora_proxy_max_layers",
        lambda c, _: c.exec.qlora_lm_head_only and (c.exec.qlora_proxy_max_layers or 0) > 0,
        "exec.qlora_lm_head_only is true, but exec.qlora_proxy_max_layers is {c.exec.qlora_proxy_max_layers}.",
        "Leave both out: the full graph is trained.",
    ),
    Refusal(
        Code.CE_LAST_K_TOO_LARGE,
        "exec.qlora_ce_last_k",
        lambda c, _: c.exec.qlora_ce_last_k > min(MAX_CE_LAST_K, c.exec.seq_len),
        "exec.qlora_ce_last_k is {c.exec.qlora_ce_last_k}; the maximum is 64, or exec.seq_len ({c.exec.seq_len}) if "
        "that is smaller.",
        "Lower it, or set it to 0 for the loss on every assistant token.",
    ),
    Refusal(
        Code.CORPUS_TOO_SMALL,
        "data.train_file",
        lambda _, x: x.rows is not None and x.rows < 1,
        "The training file has {x.rows} rows that can be trained on.",
        "Add rows (100 or more is advised), or lower data.min_rating.",
    ),
    Refusal(
        Code.OPTIMIZER_EXPERIMENT_OFF,
        "optimizer.experiment",
        lambda c, x: c.optimizer.experiment is not OptimizerExperiment.OFF and not x.experimental_optimizer,
        "optimizer.experiment is {c.optimizer.experiment}, a name that the original reserved but never"
        " implemented; this release does not implement it either, even with MENS_EXPERIMENTAL_OPTIMIZER.",
        "Set optimizer.experiment to off; optimizer.kind chooses the optimizer.",
    ),
    Refusal(
        Code.LM_HEAD_ONLY_UNSUPPORTED,
        "exec.qlora_lm_head_only",
        lambda c, _: c.exec.qlora_lm_head_only,
        "exec.qlora_lm_head_only is true, but only the full graph is trained.",
        "Set exec.qlora_lm_head_only to false.",
    ),
    Refusal(
        Code.PARTIAL_DEPTH_UNSUPPORTED,
        "exec.qlora_proxy_max_layers",
        lambda c, x: (
            c.exec.qlora_proxy_max_layers is not None
            and (x.n_layers is None or c.exec.qlora_proxy_max_layers < x.n_layers)
        ),
        "exec.qlora_proxy_max_layers is {c.exec.qlora_proxy_max_layers}, which does not cover the base's layers"
        " ({x.depth}); every layer is always trained.",
        "Leave exec.qlora_proxy_max_layers out.",
    ),
)
"""Every refusal, in the order of checking."""

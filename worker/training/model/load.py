"""The frozen base model, in NF4 or unquantised, and the LoRA layers on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from shared.artifacts.manifests import TrainedDtype
from shared.base_models.config import ModelConfig, parse_model_config
from shared.contract.choices import BaseQuant, Device
from shared.contract.contracts import FineTuneContract
from shared.contract.sections import AdapterSection, DeviceSection, QuantSection
from shared.errors import Code, ContractRejected
from shared.gpus.torch_program import read_torch
from shared.gpus.torch_report import TorchReport
from shared.gpus.usable import NO_GPU, MachineGpus, find_gpus
from worker.training.model.attention import DOCUMENTS, can_pack
from worker.training.model.fsdp import shard_base
from worker.training.model.gpu_share import keep_to_share
from worker.training.model.kernels.blocks import use_kernels
from worker.training.model.linear_attention import use_own_scan
from worker.training.model.lora_fusion import FusionReport, fuse_lora
from worker.training.model.memory_budget import Budget, every_kernel_agrees
from worker.training.model.recompute import set_recompute


def pick_device(requested: DeviceSection, local_rank: int = 0) -> torch.device:
    """Return the device that the contract allows: a usable GPU if there is one, unless the CPU was requested.

    Raises:
        ContractRejected: ``GPU_UNUSABLE``: torch cannot use the GPU that the driver shows, and the contract does not
            name the CPU. ``GPU_REQUIRED``: this machine has none, and the contract does not allow a CPU.
    """
    gpus = NO_GPU if requested.device is Device.CPU else own_gpus()
    if gpus.gpus:
        device = torch.device("cuda", local_rank)
        keep_to_share(device)
        return device
    needs_gpu = requested.require_gpu or (requested.device is Device.CUDA and not requested.allow_cpu_fallback)
    if gpus.fault and (needs_gpu or requested.device is Device.AUTO):
        raise ContractRejected(
            Code.GPU_UNUSABLE,
            gpus.fault,
            remedy="Correct it and restart the worker, or set device.device to cpu to train without the GPU.",
            param="device.device",
        )
    if needs_gpu:
        raise ContractRejected(
            Code.GPU_REQUIRED,
            "The contract requires a GPU, but this worker does not have one that torch can use.",
            remedy=(
                "Run the job on a worker with a GPU, or set device.allow_cpu_fallback to true and device.require_gpu "
                "to false."
            ),
            param="device.require_gpu" if requested.require_gpu else "device.device",
        )
    return torch.device("cpu")


def own_gpus() -> MachineGpus:
    """Return the GPUs that this process, which has loaded torch, can train on."""
    return find_gpus(lambda: TorchReport.model_validate(read_torch()))


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of activations and dequantised weights: bf16 on an accelerator, fp32 on the CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def compute_dtype_name(device: torch.device) -> TrainedDtype:
    """Return the name of :func:`compute_dtype`, as a manifest contains it."""
    return "bfloat16" if compute_dtype(device) is torch.bfloat16 else "float32"


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the base's own tokenizer; its files only, never its code."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_base(
    folder: Path, quant: QuantSection, device: torch.device, dtype: torch.dtype | None = None
) -> torch.nn.Module:
    """Load the frozen base: its linear layers in NF4 (QLoRA, arXiv 2305.14314 §3), or every weight in one dtype.

    Args:
        quant: an unset precision means NF4.
        dtype: dtype of activations, of weights that are not quantised, and of dequantised ones; None: the device's
            default.
    """
    dtype = dtype or compute_dtype(device)
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        folder,
        quantization_config=_nf4_config(quant, dtype) if quant.base is not BaseQuant.NONE else None,
        dtype=dtype,
        device_map={"": device},
        trust_remote_code=False,
        local_files_only=True,
        use_safetensors=True,
    )
    _keep_differentiable(model)
    use_own_scan(model)
    use_kernels(model)
    if can_pack(model, model.config):
        model.set_attn_implementation(DOCUMENTS)  # type: ignore[operator]
    return model.requires_grad_(False)


def read_config(base: Path) -> ModelConfig:
    """Read the numbers of the base's config.json."""
    return parse_model_config(json.loads((base / "config.json").read_bytes()))


def packs(model: torch.nn.Module) -> bool:
    """Return whether rows of this model share sequences."""
    config: PreTrainedConfig = model.config
    return bool(config._attn_implementation == DOCUMENTS)  # noqa: SLF001  # where transformers keeps it


def build_model(
    base: Path,
    contract: FineTuneContract,
    device: torch.device,
    budget: Budget,
    start: Callable[[PeftModel], None] | None = None,
) -> tuple[PeftModel, FusionReport]:
    """Build the model to train, configured according to the budget.

    Args:
        start: function that loads the weights from which the run starts into the new LoRA layers; None: they keep their
            initial values.
    """
    first = torch.device("cpu") if budget.shard_base else device
    loaded = load_base(base, contract.quant, first, compute_dtype(device))
    model = attach_lora(loaded, contract.adapter, contract.exec.seed)
    if start:
        start(model)
    fused = fuse_lora(model, cache_dequantised=budget.cache_dequantised)
    set_recompute(model, budget.recompute)
    if budget.shard_base:
        shard_base(model, device)
    runs = device.type == "cuda" and every_kernel_agrees(device, read_config(base))
    return model, replace(fused, kernels=runs)


def _nf4_config(quant: QuantSection, dtype: torch.dtype) -> BitsAndBytesConfig:
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=quant.double_quant,
        bnb_4bit_compute_dtype=dtype,
    )


def _keep_differentiable(model: torch.nn.Module) -> None:
    """Prevent bitsandbytes from using its inference layout on CPUs with AVX512-BF16."""
    # The first validation would repack every weight for a kernel without a gradient, and training would continue with
    # it: LoRA gradients would be silently wrong, and a resumed run would differ from an uninterrupted one.
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False


def attach_lora(model: torch.nn.Module, adapter: AdapterSection, seed: int) -> PeftModel:
    """Add LoRA layers to the linear layers: A random from the seed, B zero, both fp32 (arXiv 2106.09685 §4.1).

    Raises:
        ContractRejected: ``CONTRACT_UNSUPPORTED``: ``target_modules`` names no linear layer of this model.
    """
    torch.manual_seed(seed)
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=list(adapter.target_modules) if adapter.target_modules else "all-linear",
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        tuned = get_peft_model(model, config, autocast_adapter_dtype=True)
    except ValueError as error:
        raise ContractRejected(
            Code.CONTRACT_UNSUPPORTED,
            f"adapter.target_modules {list(adapter.target_modules or ())} matches no layer of this model.",
            remedy="Name linear layers of the model, e.g. q_proj and v_proj, or leave target_modules out.",
            param="adapter.target_modules",
        ) from error
    assert isinstance(tuned, PeftModel)
    return tuned


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the LoRA parameters, in a stable order."""
    return [parameter for _, parameter in sorted(model.named_parameters()) if parameter.requires_grad]

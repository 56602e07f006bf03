"""The base model in NF4, and the LoRA layers on it."""

from __future__ import annotations

from pathlib import Path

import torch
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedTokenizerBase

from shared.contract import AdapterSection, QuantSection
from shared.errors import Code, ContractRejected


def pick_device() -> torch.device:
    """The accelerator when there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compute_dtype(device: torch.device) -> torch.dtype:
    """Dtype of activations and dequantised weights: bf16 on an accelerator, fp32 on the CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The base's own tokenizer; its files only, never its code."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_quantised(folder: Path, quant: QuantSection, device: torch.device) -> torch.nn.Module:
    """The frozen base with its linear layers in NF4 (QLoRA, arXiv 2305.14314 §3)."""
    dtype = compute_dtype(device)
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=quant.double_quant,
        bnb_4bit_compute_dtype=dtype,
    )
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        folder,
        quantization_config=config,
        dtype=dtype,
        device_map={"": device},
        trust_remote_code=False,
        local_files_only=True,
        use_safetensors=True,
    )
    _keep_differentiable(model)
    return model.requires_grad_(False)


def _keep_differentiable(model: torch.nn.Module) -> None:
    """Forbid bitsandbytes its inference layout on CPUs with AVX512-BF16.

    The first forward in eval mode (our first validation) would repack every weight for a bf16 kernel that has no
    gradient, and training would go on with it: LoRA gradients silently wrong, and a resumed run unlike the whole one.
    """
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False


def attach_lora(model: torch.nn.Module, adapter: AdapterSection, seed: int) -> PeftModel:
    """Put LoRA layers on the linear layers: A random from the seed, B zero, both fp32 (arXiv 2106.09685 §4.1).

    Raises:
        ContractRejected: ``CONTRACT_UNSUPPORTED``: ``target_modules`` names no linear layer of this model.
    """
    torch.manual_seed(seed)
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=adapter.target_modules or "all-linear",
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        tuned = get_peft_model(model, config, autocast_adapter_dtype=True)
    except ValueError as error:
        raise ContractRejected(
            Code.CONTRACT_UNSUPPORTED,
            f"adapter.target_modules {adapter.target_modules} fits no layer of this model.",
            remedy="Name linear layers of the model, e.g. q_proj and v_proj, or leave target_modules out.",
            param="adapter.target_modules",
        ) from error
    assert isinstance(tuned, PeftModel)
    if torch.cuda.is_available():
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    return tuned


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The LoRA parameters, in a stable order."""
    return [parameter for _, parameter in sorted(model.named_parameters()) if parameter.requires_grad]

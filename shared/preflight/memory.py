"""Bytes of a training run with LoRA, part by part, from shapes alone. Pure arithmetic.

NF4 (bitsandbytes 0.50, arXiv 2305.14314 §3) half a byte per weight; one absmax per block of 64: fp32, or with double
quantisation one byte, with an fp32 absmax per group of 256 and an offset; and two code books
                                              (16 and 256 fp32 values) that each layer owns.
LoRA (arXiv 2106.09685 §4.1)                  A (rank, in) and B (out, rank), fp32.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from shared.artifacts.manifests import peft_keys
from shared.base_models.config import ModelConfig
from shared.base_models.tensors import Shape, expected_tensors, linear_layers, lora_modules, parameter_count
from shared.contract.choices import BaseQuant
from shared.contract.contracts import FineTuneContract

NF4_BLOCK, NF4_GROUP = 64, 256
NF4_CODE_BYTES, GROUP_CODE_BYTES, OFFSET_BYTES = 16 * 4, 256 * 4, 4
# bitsandbytes keeps the moments of smaller tensors in fp32 (its `min_8bit_size`).
SMALLEST_8BIT_TENSOR, MOMENT_BLOCK = 4096, 256
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
RNG_STATE_BYTES = 5056
"""``torch.get_rng_state()``: the CPU generator."""

HEADER_BYTES_PER_TENSOR = 128
"""Upper bound of one tensor's entry in the header of a checkpoint's optimizer file."""

CHECKPOINT_TEXT_BYTES = 1 << 20
"""Allowance for a checkpoint's JSON files: manifest, PEFT's config, metrics."""

CHUNK_ELEMENTS = 1 << 25
"""Number of logits that exist at a time (fp32: 128 MiB)."""


def nf4_bytes(weights: int, *, double_quant: bool) -> int:
    """Return the bytes of one linear layer's weight in memory, quantisation state and code books included."""
    packed, blocks = math.ceil(weights / 2), math.ceil(weights / NF4_BLOCK)
    if not double_quant:
        return packed + 4 * blocks + NF4_CODE_BYTES
    # The blocks' scales are quantised to a byte each, around one offset; their own scales stay fp32.
    state = blocks + 4 * math.ceil(blocks / NF4_GROUP) + OFFSET_BYTES
    return packed + state + NF4_CODE_BYTES + GROUP_CODE_BYTES


def unquantised_bytes(config: ModelConfig, compute_bytes: int) -> int:
    """Return the bytes of everything but the NF4 layers: embeddings, head, norms, biases, convolutions."""
    linear = sum(inputs * outputs for inputs, outputs in linear_layers(config).values())
    return (parameter_count(expected_tensors(config)) - linear) * compute_bytes


def lora_tensors(config: ModelConfig, rank: int, target_modules: Sequence[str] | None = None) -> dict[str, Shape]:
    """Return PEFT's tensors of an adapter, name → shape."""
    tensors: dict[str, Shape] = {}
    for module, (inputs, outputs) in lora_modules(config, target_modules).items():
        a, b = peft_keys(f"{module}.weight")
        tensors |= {a: (rank, inputs), b: (outputs, rank)}
    return tensors


def adapter_file_bytes(lora: Mapping[str, Shape]) -> int:
    """Return the exact size of ``adapter_model.safetensors``: fp32 tensors ordered by name, and the header."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, shape in sorted(lora.items()):
        end = position + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [position, end]}
        position = end
    # safetensors writes its JSON without spaces, and pads the header so that the data begins at a multiple of eight.
    length = len(json.dumps(header, separators=(",", ":")))
    return 8 + math.ceil(length / 8) * 8 + position


def checkpoint_bytes(lora: Mapping[str, Shape]) -> int:
    """Return an upper bound of one checkpoint: the adapter, AdamW's moments and step counters, RNG state, headers,
    JSON.
    """
    # Three entries per parameter: two moments and a step counter.
    headers = HEADER_BYTES_PER_TENSOR * 3 * (len(lora) + 1)
    return adapter_file_bytes(lora) + optimizer_state_bytes(lora) + headers + CHECKPOINT_TEXT_BYTES


def optimizer_state_bytes(lora: Mapping[str, Shape]) -> int:
    """Return the exact tensor bytes of a checkpoint's ``trainer_state.safetensors`` written on a CPU, without the
    header.
    """
    return 8 * parameter_count(lora) + 4 * len(lora) + RNG_STATE_BYTES


def moment_bytes(elements: int, *, eight_bit: bool) -> int:
    """Return the device memory of AdamW's two moments of a tensor: fp32, or one byte each and an fp32 scale per block
    of 256.

    The 8-bit optimizer keeps small tensors in fp32 too.
    """
    if not eight_bit or elements < SMALLEST_8BIT_TENSOR:
        return 8 * elements
    return 2 * (elements + 4 * math.ceil(elements / MOMENT_BLOCK))


def merged_bytes(config: ModelConfig) -> int:
    """Return the tensor bytes of the language model in its own dtype (bf16 when the config names none)."""
    return parameter_count(expected_tensors(config)) * DTYPE_BYTES.get(config.dtype or "", 2)


def chunk_rows(vocab: int) -> int:
    """Return the hidden rows whose logits exist at a time: the trainer computes head and loss in chunks of them."""
    return max(1, CHUNK_ELEMENTS // vocab)


def head_bytes(config: ModelConfig, compute_bytes: int) -> int:
    """Return bytes per token for logits in compute dtype, in fp32 if that differs, and for the fp32 exponentials of
    their sum.
    """
    return config.vocab * (8 if compute_bytes == 4 else compute_bytes + 8)


def cache_bytes(contract: FineTuneContract, config: ModelConfig, element_bytes: int) -> int:
    """Return the size of all quantised weights when kept dequantised; 0 if no weight is quantised."""
    if contract.quant.base is BaseQuant.NONE:
        return 0
    return element_bytes * sum(inputs * outputs for inputs, outputs in linear_layers(config).values())

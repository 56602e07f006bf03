"""Bytes of a micro-batch's activations: those saved for the backward pass, and the peak of those alive. Pure arithmetic.

Counted from the trainer's own functions; `tests/shared/preflight/test_activations.py` counts every family again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from shared.base_models.config import LinearAttention, ModelConfig
from shared.base_models.families import GATED_MLP, LINEAR, ActivationBytes
from shared.base_models.tensors import lora_modules
from shared.contract.contracts import FineTuneContract

DELTA_CHUNK = 64
"""Positions of linear attention whose updates are solved together (`worker/training/model/delta_rule.py`)."""


class Recompute(StrEnum):
    """Choice of the activations that the backward pass recomputes instead of keeping; each choice needs less memory and
    more time than the one before it, and none changes the result.
    """

    NONE = "none"
    MLPS = "mlps"
    """The norms before attention and MLP, and the two wide products of each MLP."""
    BLOCKS = "blocks"
    """Everything in a block except its input."""

    @property
    def rank(self) -> int:
        """Place among the choices, counted from the one that needs the most memory."""
        return list(Recompute).index(self)


def is_fused(contract: FineTuneContract, config: ModelConfig) -> bool:
    """Return whether the trainer packs rows and fuses whole MLPs: no dropout, a gated MLP with LoRA."""
    if contract.adapter.dropout or config.spec.mlp is not GATED_MLP:
        return False
    modules = lora_modules(config, contract.adapter.target_modules)
    return any(name.endswith(tuple(GATED_MLP)) for name in modules)


def choices_of(contract: FineTuneContract, config: ModelConfig) -> tuple[Recompute, ...]:
    """Return the choices that the trainer supports: norms and MLPs only if it fuses whole MLPs."""
    return tuple(Recompute) if is_fused(contract, config) else (Recompute.NONE, Recompute.BLOCKS)


def activation_bytes(
    config: ModelConfig,
    rank: int,
    compute_bytes: int,
    *,
    recompute: Recompute = Recompute.NONE,
    fused: bool = False,
    kernels: bool = True,
) -> int:
    """Return the bytes per token that the forward pass saves for the backward pass.

    If blocks are recomputed: the input of each block, plus, while a block is recomputed, everything that this block
    saves.

    Args:
        fused: whether the trainer packs rows and fuses MLPs (`worker/training/model/fused_functions.py`).
        kernels: whether Triton's kernels run, if it is on a GPU.
    """
    blocks = _block_bytes(config, rank, compute_bytes, fused=fused, kernels=kernels)
    if recompute is Recompute.BLOCKS:
        # One block at a time is recomputed, so memory holds the blocks' inputs and the largest block.
        return config.layers * config.hidden * compute_bytes + max(blocks)
    return sum(blocks)


def peak_bytes(
    config: ModelConfig,
    rank: int,
    compute_bytes: int,
    *,
    tokens: int,
    logits: int,
    recompute: Recompute,
    fused: bool,
    kernels: bool = True,
    dropped: Sequence[int] = (),
) -> int:
    """Return the peak of the bytes of activations that are alive in addition to the logits.

    The logits are alive at the end of the forward pass only. Afterwards, their memory is used for a block's gradients
    and recomputed activations.

    Args:
        kernels: whether Triton's kernels run, if it is on a GPU.
        dropped: value of :func:`dropped_inputs`, for a job with dropout.
    """
    if not (fused or dropped):
        return tokens * activation_bytes(config, rank, compute_bytes, recompute=recompute, kernels=kernels)
    blocks = _block_bytes(config, rank, compute_bytes, fused=fused or compute_bytes == 2, kernels=kernels)
    gradients = _gradient_bytes(config, compute_bytes, kernels=kernels, recompute=recompute, dropout=bool(dropped))
    if dropped:
        layers = zip(blocks, dropped, config.layer_types, strict=True)
        blocks = [block + _dropout_bytes(config, rank, compute_bytes, inputs, kind) for block, inputs, kind in layers]
    kept, block = sum(blocks), 0
    if recompute is Recompute.BLOCKS:
        kept, block = config.layers * config.hidden * compute_bytes, max(blocks)
    elif recompute is Recompute.MLPS:
        kept -= config.layers * _dropped_bytes(config, compute_bytes, kernels=kernels)
    weight = compute_bytes * config.hidden * config.intermediate
    backward = tokens * (block + gradients) + weight
    return tokens * kept + max(0, backward - logits)


def dropped_inputs(contract: FineTuneContract, config: ModelConfig) -> list[int]:
    """Return the input features of each block's layers with LoRA, added up; none if the adapter has no dropout."""
    if not contract.adapter.dropout:
        return []
    totals = [0] * config.layers
    for name, (inputs, _) in lora_modules(config, contract.adapter.target_modules).items():
        if block := re.search(rf"\b{config.spec.block}\.(\d+)\.", name):
            totals[int(block[1])] += inputs
    return totals


def _dropout_bytes(config: ModelConfig, rank: int, compute_bytes: int, inputs: int, kind: str) -> int:
    """Return the bytes per token that a block with dropout saves in addition to the base figure of :func:`peak_bytes`;
    ``inputs`` are the input features of its layers with LoRA.
    """
    # Each of these layers keeps its own input, in fp32, and the mask: on a GPU one byte per element, on a CPU its
    # factors in fp32. The inputs that layers otherwise share are not kept.
    if compute_bytes == 2:
        return 5 * inputs - 4 * config.hidden + (16 if kind == LINEAR else 14) * rank
    mixed = config.linear.value_dim if config.linear and kind == LINEAR else config.query_dim
    return 8 * inputs - 4 * (2 * config.hidden + mixed + config.intermediate)


def _dropped_bytes(config: ModelConfig, compute_bytes: int, *, kernels: bool) -> int:
    """Return the bytes per token that are not kept if a block's norms and MLP are recomputed: two norms, and the
    outputs of gate and up.
    """
    # Torch's norm in 16 bits keeps its input in fp32, and would need it in 16 bits as well to be computed again.
    norms = 2 if compute_bytes == 4 or kernels else 0
    return compute_bytes * (norms * config.hidden + 2 * config.intermediate)


def _unit(config: ModelConfig, compute_bytes: int, *, fused: bool, kernels: bool) -> ActivationBytes:
    if fused and compute_bytes == 2 and not kernels:
        return config.spec.without_kernels
    return (config.spec.fused_activations if fused else config.spec.activations)[compute_bytes]


def _block_bytes(config: ModelConfig, rank: int, compute_bytes: int, *, fused: bool, kernels: bool = True) -> list[int]:
    """Return the bytes per token that each block saves."""
    unit = _unit(config, compute_bytes, fused=fused, kernels=kernels)
    full = (
        unit.hidden * config.hidden
        + unit.intermediate * config.intermediate
        + unit.query * config.query_dim
        + unit.kv * config.kv_dim
        + unit.heads * config.heads
        + unit.kv_heads * config.kv_heads
        + unit.rank * rank
        + unit.constant
    )
    linear = 0
    if config.linear:
        linear = _linear_block_bytes(config, rank, compute_bytes, unit, fused=fused, kernels=kernels)
    return [linear if kind == LINEAR else full for kind in config.layer_types]


def _linear_block_bytes(
    config: ModelConfig, rank: int, compute_bytes: int, unit: ActivationBytes, *, fused: bool, kernels: bool
) -> int:
    """Return the bytes per token that a block of linear attention saves."""
    linear = config.linear
    assert linear is not None
    # Five projections where full attention has four. Below fp32 peft gives each a copy of its input in fp32.
    copies = 4 if not fused and compute_bytes == 2 else 0
    residual = (unit.hidden + copies) * config.hidden + unit.intermediate * config.intermediate
    adapter = unit.rank // 7 * 8 * rank
    # The gated norm, and the input of the projection after it.
    output = (12 + 2 * compute_bytes + copies // 2) * linear.value_dim
    in_kernels = kernels and compute_bytes == 2
    rule = _kernel_rule_bytes(linear) if in_kernels else _torch_rule_bytes(linear, compute_bytes)
    return residual + adapter + output + rule + unit.constant


def _torch_rule_bytes(linear: LinearAttention, compute_bytes: int) -> int:
    """Return the bytes per token that convolution and delta rule save in torch, which computes the rule in fp32."""
    # Queries and keys, repeated for every value head, by chunks, and once more the keys that read the state.
    keys = 20 * linear.key_head_dim * linear.value_heads
    pairs = (3 * 4 * DELTA_CHUNK + 30) * linear.value_heads
    return keys + 12 * linear.value_dim + pairs + compute_bytes * linear.conv_dim + _state_bytes(linear, 4)


def _kernel_rule_bytes(linear: LinearAttention) -> int:
    """Return the bytes per token that convolution and delta rule save for their kernels, in 16 bits except decays."""
    # The convolution's input and output; the keys that read the state, and what is written.
    columns = 2 * linear.conv_dim + linear.key_head_dim * linear.value_heads + linear.value_dim
    # The inverse of a chunk's system; decays and rates.
    pairs = (2 * DELTA_CHUNK + 10) * linear.value_heads
    return 2 * columns + pairs + _state_bytes(linear, 2)


def _state_bytes(linear: LinearAttention, element_bytes: int) -> int:
    """Return the bytes of the state before each chunk, per token."""
    return element_bytes * linear.key_head_dim * linear.value_dim // DELTA_CHUNK


def _gradient_bytes(
    config: ModelConfig, compute_bytes: int, *, kernels: bool, recompute: Recompute, dropout: bool
) -> int:
    """Return the bytes per token that the backward pass of a block needs in addition to the saved activations; a
    dequantised weight is added separately.
    """
    # In 16 bits, which is on a GPU, a norm's gradient is one kernel, if kernels run; in torch it takes several tensors in fp32.
    norm = 4 * compute_bytes if compute_bytes == 2 and kernels else 20
    mlp = max(3 * compute_bytes * config.intermediate, norm * config.hidden)
    dropped = _dropped_bytes(config, compute_bytes, kernels=kernels) if recompute is Recompute.MLPS else 0
    mlp = max(mlp, 3 * compute_bytes * config.intermediate + dropped)
    # PEFT's layers on an MLP, counted; they save its inputs for each layer.
    on_gpu, inputs = compute_bytes == 2, 2 * config.hidden + config.intermediate
    if dropout:
        mlp = 14 * config.hidden + 6 * config.intermediate if on_gpu else 15 * config.hidden + 4 * config.intermediate
    if config.linear is None:
        return mlp
    linear = config.linear
    # The MLP's backward pass has ended by then, and the memory of what it saved is free.
    freed = 4 * config.hidden + 2 * compute_bytes * config.intermediate
    if dropout:
        freed += 5 * inputs - 2 * config.hidden if on_gpu else 8 * inputs - 4 * (config.hidden + config.intermediate)
    keys, pairs = linear.key_head_dim * linear.value_heads, DELTA_CHUNK * linear.value_heads
    if compute_bytes == 2 and kernels:
        # The gradients of the outputs, of what is written and of the gate, of three kinds of keys, and of what enters.
        rule = 2 * (3 * linear.value_dim + 3 * keys + linear.conv_dim) + _state_bytes(linear, 2)
    else:
        rule = 24 * keys + (2 if compute_bytes == 2 else 0) * linear.value_dim + 24 * pairs + _state_bytes(linear, 4)
    return max(mlp, rule - freed)

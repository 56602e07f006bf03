"""How a run uses the memory there is: tokens a micro-batch, recomputed activations, a cache of dequantised weights.

On an accelerator the plan's own memory arithmetic (`shared/preflight/estimate.py`) decides, fastest choice first: nothing is
recomputed and micro-batches are large; then the cache is kept if there still is room; only if need be activations are
recomputed. On a CPU larger micro-batches are not faster, so they are what the contract's batch would be, padded: the same
on every machine, and with it the adapter's bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch

from shared.base_models.config import ModelConfig
from shared.base_models.tensors import linear_layers
from shared.contract.sections import FineTuneContract
from shared.host import available_memory
from shared.preflight.estimate import RUNTIME_BYTES, VRAM_FRACTION, vram_parts
from shared.preflight.types import Configuration
from worker.training.model.lm_head import chunk_rows

MAX_TOKENS = 65_536
"""Larger micro-batches keep an accelerator no busier."""
ENOUGH_TOKENS = 8_192
"""Micro-batches of this size are worth more than activations that need no recomputing."""
CPU_TOKENS = 8_192
"""Most tokens of a micro-batch of several rows on a CPU, where activations are not recomputed."""
CPU_CACHE_FRACTION = 0.25
"""Share of the free memory that dequantised weights may take on a CPU."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How a run uses memory.

    Attributes:
        tokens: most tokens of a micro-batch; a longer row is one of its own.
        checkpointing: activations are recomputed in the backward pass.
        cache_dequantised: the frozen weights are also kept as they are after dequantising: the same numbers, no work.
        shard_base: each of several processes holds a part of the frozen weights, and gathers a block's when it needs them.
        predicted_bytes: what the run is expected to take on the device; None on a CPU.
    """

    tokens: int
    checkpointing: bool
    cache_dequantised: bool
    shard_base: bool = False
    predicted_bytes: int | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def choose_budget(
    contract: FineTuneContract,
    config: ModelConfig,
    device: torch.device,
    processes: int = 1,
    *,
    shard_base: bool = False,
    smallest: Callable[[int], int] = int,
) -> Budget:
    """Decide for the device at hand.

    Args:
        processes: that train together: a CPU's memory is shared by them, and a base that fits no GPU may be.
        shard_base: the operator wants the base in parts even where it fits whole.
        smallest: the least of a number over all processes: they must decide alike.
    """
    if device.type != "cuda":
        budget = cpu_budget(contract, config, available_memory() // processes)
    else:
        free, total = torch.cuda.mem_get_info(device)  # a serving replica may share the device
        limit = min(math.floor(total * (contract.exec.max_vram_fraction or VRAM_FRACTION)), free)
        budget = device_budget(contract, config, smallest(limit), processes)
    if shard_base and processes > 1:
        return replace(budget, shard_base=True, cache_dequantised=False)
    return budget


def cpu_budget(contract: FineTuneContract, config: ModelConfig, free_bytes: int) -> Budget:
    """What the contract's batch would be, padded, within a bound; the cache where it takes a small part of the memory."""
    cached = cache_bytes(config, element_bytes=4) <= CPU_CACHE_FRACTION * free_bytes
    seq_len = contract.exec.seq_len
    tokens = max(seq_len, min(CPU_TOKENS, contract.exec.batch_size * seq_len))
    return Budget(tokens, checkpointing=False, cache_dequantised=cached)


def device_budget(contract: FineTuneContract, config: ModelConfig, limit_bytes: int, processes: int = 1) -> Budget:
    """The fastest way that needs at most ``limit_bytes``; the smallest when none does (the attempt will tell).

    A base is held in parts only when nothing fits otherwise.
    """
    sizes = token_sizes(contract)
    whole = min(ENOUGH_TOKENS, sizes[0])
    ways = [(tokens, recompute) for recompute in (False, True) for tokens in sizes if recompute or tokens >= whole]
    for holders in sorted({1, processes}):
        for tokens, recompute in ways:
            needed = predict(contract, config, tokens, checkpointing=recompute, holders=holders)
            if needed <= limit_bytes:
                cache = cache_bytes(config, element_bytes=2)
                cached = holders == 1 and needed + cache <= limit_bytes
                return Budget(tokens, recompute, cached, holders > 1, needed + cache * cached)
    smallest = predict(contract, config, sizes[-1], checkpointing=True, holders=processes)
    return Budget(sizes[-1], True, False, processes > 1, smallest)  # as above


def token_sizes(contract: FineTuneContract) -> list[int]:
    """Sizes of a micro-batch worth trying, largest first: from a whole step's rows down to one row."""
    exec_ = contract.exec
    sizes = [max(exec_.seq_len, min(MAX_TOKENS, exec_.batch_size * exec_.grad_accum * exec_.seq_len))]
    while sizes[-1] // 2 >= exec_.seq_len:
        sizes.append(sizes[-1] // 2)
    return sizes


def predict(
    contract: FineTuneContract, config: ModelConfig, tokens: int, *, checkpointing: bool, holders: int = 1
) -> int:
    """Device memory in bytes of micro-batches of so many tokens, by the plan's own arithmetic.

    Args:
        holders: processes that each hold a part of the frozen blocks; one block is whole at a time.
    """
    exec_ = contract.exec
    asked = Configuration(
        batch_size=1,
        grad_accum=exec_.grad_accum,
        seq_len=tokens,
        checkpointing=checkpointing,
        head_chunk=chunk_rows(config.vocab),
    )
    parts = vram_parts(contract, config, asked, compute_bytes=2, runtime_bytes=RUNTIME_BYTES)
    held = parts.quantised_weights // holders + (parts.quantised_weights // config.layers if holders > 1 else 0)
    return parts.total - parts.quantised_weights + held


def cache_bytes(config: ModelConfig, element_bytes: int) -> int:
    """Size of all quantised weights when they are kept dequantised."""
    return element_bytes * sum(inputs * outputs for inputs, outputs in linear_layers(config).values())

"""Decide how a run uses the available memory: tokens per micro-batch, recomputed activations, a cache of dequantised
weights.

On an accelerator the plan's own memory arithmetic (`shared/preflight/estimate.py`) decides, fastest choice first: large
micro-batches without recomputation; the cache, if memory is left; only if necessary, recomputed activations, first
those of norms and MLPs, which repeats half of the products.

On a CPU, larger micro-batches are not faster, so they hold as many tokens as the contract's padded batch. Their size,
and so the adapter's bytes, are then the same on every machine where they fit. Where they do not fit, they are made
smaller, and then activations are recomputed. This depends on the machine's total memory, never on its free memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

import torch

from shared.base_models.config import ModelConfig
from shared.contract.contracts import FineTuneContract
from shared.host import allowed_memory, available_memory
from shared.preflight.activations import Recompute, choices_of
from shared.preflight.estimate import RUNTIME_BYTES, cpu_cache, cpu_tokens, longest_row, memory_limit, vram_parts
from shared.preflight.memory import cache_bytes
from shared.preflight.types import Configuration
from worker.training.model.gpu_share import gpu_share, memory_held
from worker.training.model.kernels.choice import delta_rule_agrees, kernels_agree
from worker.training.model.kernels.delta_rule.functions import HeadSizes

MAX_TOKENS = 65_536
"""Largest micro-batch in tokens: larger ones do not use an accelerator better."""
ENOUGH_TOKENS = 4_096
"""Smallest micro-batch in tokens that is preferred to a larger one with recomputed activations. Recomputing takes a
third more time, and a GPU computes micro-batches of 4,096 tokens nearly as fast as larger ones.
"""


@dataclass(frozen=True, slots=True)
class Budget:
    """A run's use of memory.

    Attributes:
        tokens: largest number of tokens of a micro-batch; a longer row is a micro-batch of its own.
        recompute: activations that are recomputed in the backward pass.
        cache_dequantised: whether the frozen weights are also kept dequantised, which gives the same numbers without
            repeated work.
        shard_base: whether each of several processes holds a part of the frozen weights and gathers a block's weights
            when it needs them.
        predicted_bytes: memory that the run is expected to use on the device.
    """

    tokens: int
    recompute: Recompute
    cache_dequantised: bool
    predicted_bytes: int
    shard_base: bool = False

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
    largest_step: int | None = None,
) -> Budget:
    """Choose the memory budget for this process's device.

    Args:
        processes: number of processes that train together. They share a CPU's memory, and may share a base that does
            not fit on a GPU.
        shard_base: whether the operator requires sharding even if the base fits on one device.
        smallest: all-reduce minimum over the processes, which must make equal decisions.
        largest_step: tokens of the largest step, if known.

    Raises:
        JobFailed: ``GPU_MEMORY_HELD``: other programs hold memory that even the smallest configuration needs; otherwise
            the run would load the base and then run out of memory.
    """
    if device.type != "cuda":
        limit = memory_limit(contract, allowed_memory() // processes)
        largest = largest_step if processes == 1 else None
        budget = cpu_budget(contract, config, smallest(limit), available_memory() // processes, largest)
    else:
        # Without kernels torch saves more activations, and sharded processes cannot repeat a step in smaller
        # micro-batches.
        kernels = bool(smallest(int(every_kernel_agrees(device, config))))
        free, total = torch.cuda.mem_get_info(device)  # a serving replica may share the device
        own, free = smallest(memory_limit(contract, int(gpu_share() * total))), smallest(free)
        budget = device_budget(contract, config, min(own, free), processes, kernels=kernels)
        # The process may have taken its own runtime memory already.
        if budget.predicted_bytes <= own and budget.predicted_bytes - RUNTIME_BYTES > free:
            raise memory_held(device, needed=budget.predicted_bytes, free=free)
    if shard_base and processes > 1:
        return replace(budget, shard_base=True, cache_dequantised=False)
    return budget


def every_kernel_agrees(device: torch.device, config: ModelConfig) -> bool:
    """Return whether all kernels that a model uses run on the device."""
    linear = config.linear
    if linear is None:
        return kernels_agree(device)
    sizes = HeadSizes(linear.key_heads, linear.key_head_dim, linear.value_heads, linear.value_head_dim)
    return kernels_agree(device) and delta_rule_agrees(device, sizes)


def cpu_budget(
    contract: FineTuneContract,
    config: ModelConfig,
    limit_bytes: int,
    free_bytes: int,
    largest_step: int | None = None,
) -> Budget:
    """Return a budget for the contract's padded batch, within a bound; a smaller one if that needs more than
    ``limit_bytes``.

    Args:
        free_bytes: free memory; the cache, which changes no number, is kept if it needs a small part of it.
        largest_step: tokens of the largest step, if known: it affects only the predicted bytes.
    """
    sizes = halved(cpu_tokens(contract), longest_row(contract))
    ways = [Way(tokens, recompute) for recompute in choices_of(contract, config) for tokens in sizes]
    way, needed = first_that_fits(contract, config, ways, limit_bytes, on_gpu=False)
    cache = cpu_cache(contract, config, needed, free_bytes=free_bytes, limit_bytes=limit_bytes)
    if largest_step:
        needed = predict(contract, config, way, on_gpu=False, most_tokens=largest_step)
    return Budget(way.tokens, way.recompute, cache > 0, needed + cache)


def device_budget(
    contract: FineTuneContract, config: ModelConfig, limit_bytes: int, processes: int = 1, *, kernels: bool = True
) -> Budget:
    """Return the budget of the fastest configuration that needs at most ``limit_bytes``; the smallest configuration if
    none does.

    A base is sharded only if nothing else fits.

    Args:
        kernels: whether Triton's kernels run on every process's GPU.
    """
    sizes = token_sizes(contract)
    whole = min(ENOUGH_TOKENS, sizes[0])
    ways = [
        Way(tokens, recompute, holders)
        for holders in sorted({1, processes})
        for recompute in choices_of(contract, config)
        for tokens in sizes
        if recompute is Recompute.BLOCKS or tokens >= whole
    ]
    way, needed = first_that_fits(contract, config, ways, limit_bytes, on_gpu=True, kernels=kernels)
    cache = cache_bytes(contract, config, element_bytes=2)
    cached = cache > 0 and way.holders == 1 and needed + cache <= limit_bytes
    return Budget(way.tokens, way.recompute, cached, needed + cache * cached, way.holders > 1)


@dataclass(frozen=True, slots=True)
class Way:
    """A configuration for computing a step: tokens per micro-batch, recomputed activations, number of processes that
    share the base.
    """

    tokens: int
    recompute: Recompute
    holders: int = 1


def first_that_fits(
    contract: FineTuneContract,
    config: ModelConfig,
    ways: Iterable[Way],
    limit_bytes: int,
    *,
    on_gpu: bool,
    kernels: bool = True,
) -> tuple[Way, int]:
    """Return the first configuration that needs at most `limit_bytes`, or else the last, which the attempt will try;
    and the bytes that it needs.
    """
    for way in ways:
        needed = predict(contract, config, way, on_gpu=on_gpu, kernels=kernels)
        if needed <= limit_bytes:
            break
    return way, needed


def token_sizes(contract: FineTuneContract) -> list[int]:
    """Return sizes of a micro-batch worth trying, largest first: from a whole step's rows down to one row."""
    exec_, longest = contract.exec, longest_row(contract)
    return halved(max(longest, min(MAX_TOKENS, exec_.batch_size * exec_.grad_accum * longest)), longest)


def halved(largest: int, smallest: int) -> list[int]:
    """Return sizes from the largest down to the smallest, each of them half of the previous one."""
    sizes = [largest]
    while sizes[-1] > smallest:
        sizes.append(max(smallest, sizes[-1] // 2))
    return sizes


def predict(
    contract: FineTuneContract,
    config: ModelConfig,
    way: Way,
    *,
    on_gpu: bool,
    most_tokens: int | None = None,
    kernels: bool = True,
) -> int:
    """Predict the memory of one process in bytes, with the plan's own arithmetic."""
    candidate = Configuration(
        batch_size=1,
        grad_accum=contract.exec.grad_accum,
        seq_len=way.tokens,
        recompute=way.recompute,
        holders=way.holders,
    )
    return vram_parts(contract, config, candidate, on_gpu=on_gpu, most_tokens=most_tokens, kernels=kernels).total

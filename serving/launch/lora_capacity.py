"""LoRA capacity of a replica: the largest rank that it serves, and the number of adapters that it keeps in memory.

vLLM keeps adapters on two levels. *Slots* (``max_loras``) hold the adapters of the current batch; each slot is as large
as an adapter of the largest rank, even if it holds a smaller one. The *cache* (``max_cpu_loras``) holds adapters in the
memory of every engine process, each at its own rank. An adapter that was evicted from the cache is read from its files
again, in the engine's loop. The engine exits if the cache outgrows the memory, or if files are missing when they are
read again. The size of the cache is chosen here to prevent the former; `serving/middleware/unloading.py` prevents the
latter.

    largest rank the rank of plans of this base (default contract, every preset), or the larger rank of a stored
    adapter, if a batch of such adapters and one more fit in the memory
    cache          the number of adapters of that rank that fit in their memory

An explicit setting is used unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.settings import LORA_RANKS, ServingSettings, round_rank
from shared.base_models.config import ModelConfig
from shared.base_models.tensors import HEAD, expected_tensors, lora_modules, parameter_count
from shared.contract.preset_files import Bound
from shared.contract.presets import preset_names, preset_values, size_row
from shared.contract.sections import AdapterSection
from shared.errors import Code, InvalidRequest

RANK = "adapter.rank"
MEMORY_SHARE = 4
"""Adapters may take the memory divided by this number."""

MAX_CACHED = 1024
"""Largest number of cached adapters. vLLM copies the list of them for every adapter of every step; copying a thousand
entries takes microseconds.
"""

FILE_ELEMENT_BYTES = 4
"""Bytes of an element in an adapter's files: adapters are stored in fp32, and need this much memory while they are
loaded.
"""


@dataclass(frozen=True, slots=True)
class LoraSizes:
    """The limits on adapters that vLLM is started with.

    Attributes:
        max_rank: largest rank that is served, one of the ranks that vLLM accepts.
        max_loras: number of different adapters in a batch.
        max_cpu_loras: number of adapters in memory.
        adapter_bytes: size of one adapter of the largest rank, in all engine processes together.
        room: bytes of memory that adapters may take.
    """

    max_rank: int
    max_loras: int
    max_cpu_loras: int
    adapter_bytes: int
    room: int

    @property
    def most_bytes(self) -> int:
        """Bytes of memory that adapters take once slots and cache are full."""
        return min(self.room, (self.max_loras + self.max_cpu_loras) * self.adapter_bytes)

    def __str__(self) -> str:
        return (
            f"adapters up to rank {self.max_rank}, {self.max_loras} in a batch, {self.max_cpu_loras} in memory"
            f" ({_mib(self.adapter_bytes)} each at that rank, {_mib(self.room)} for all)"
        )


def planned_rank(config: ModelConfig) -> int:
    """Return the largest rank that plans of this base have by default: that of the default contract or of a preset."""
    size = size_row(parameter_count(expected_tensors(config)), None)
    bound = size.bounds.get(RANK, Bound()) if size else Bound()
    presets = (preset_values(name).get(RANK, 0) for name in preset_names())
    return max(AdapterSection().rank, *(int(bound.clamp(rank)) for rank in presets))


def choose_sizes(
    settings: ServingSettings, config: ModelConfig, *, dtype: str, stored_rank: int, memory: int
) -> LoraSizes:
    """Choose the values that the settings leave open.

    Args:
        settings: settings of the replica.
        config: config of the served base.
        dtype: dtype in which the engine computes, or ``auto``.
        stored_rank: largest rank of a stored adapter of this base; 0 without one.
        memory: bytes that this machine or container has.

    Raises:
        InvalidRequest: ``ADAPTERS_DO_NOT_FIT``: the adapters of one batch and one more do not fit.
    """
    room = settings.serving_lora_memory_bytes or memory // MEMORY_SHARE
    requested, in_batch = settings.serving_max_cpu_loras, settings.serving_max_loras
    least = requested or in_batch + 1
    ranks = _candidate_ranks(settings, config, stored_rank)
    for rank in ranks:
        need = _Need(settings, config, rank, dtype)
        fitting = need.fitting(room)
        # A number of adapters from the settings is used even if they do not fit, but then only with the smallest rank.
        if fitting >= least or (requested and rank == ranks[-1]):
            cached = requested or min(fitting, max(least, MAX_CACHED))
            return LoraSizes(rank, in_batch, cached, need.adapter, room)
    needed = need.of(least)
    raise InvalidRequest(
        Code.ADAPTERS_DO_NOT_FIT,
        f"{least} adapters of rank {rank} take {_mib(needed)} of memory, and adapters may have {_mib(room)}.",
        remedy="Lower MENS_SERVING_MAX_LORAS or MENS_SERVING_MAX_LORA_RANK, or raise MENS_SERVING_LORA_MEMORY_BYTES.",
        param="MENS_SERVING_LORA_MEMORY_BYTES",
        details={"rank": rank, "adapters": least, "needed_bytes": needed, "allowed_bytes": room},
    )


def _candidate_ranks(settings: ServingSettings, config: ModelConfig, stored_rank: int) -> list[int]:
    """Return the ranks to try, largest first: a replica must start even if one stored adapter has a huge rank."""
    if settings.serving_max_lora_rank:
        return [settings.serving_max_lora_rank]
    planned = round_rank(planned_rank(config))
    largest = max(planned, round_rank(min(stored_rank, LORA_RANKS[-1])))
    return [rank for rank in reversed(LORA_RANKS) if planned <= rank <= largest]


class _Need:
    """Memory that adapters of one rank take, in all engine processes together."""

    def __init__(self, settings: ServingSettings, config: ModelConfig, rank: int, dtype: str) -> None:
        # Each process of a tensor or pipeline group holds every cached adapter completely.
        processes = settings.serving_tensor_parallel * settings.serving_pipeline_parallel
        element = 4 if dtype == "float32" else 2
        # An adapter may change all linear layers, and the head where the engine supports it.
        modules = lora_modules(config)
        if not config.tied and config.spec.lora_head:
            modules = modules | {HEAD: (config.hidden, config.vocab)}
        tensors = [rank * width for pair in modules.values() for width in pair]
        sizes = [element * size for size in tensors]
        pinned = settings.serving_device == "cuda"
        if pinned:
            # torch rounds page-locked memory up to a power of two.
            sizes = [1 << (size - 1).bit_length() for size in sizes]
        self.adapter = processes * sum(sizes)
        loading = processes * FILE_ELEMENT_BYTES * sum(tensors)
        # On a CPU the slots are in this memory too.
        self.fixed = loading + (0 if pinned else settings.serving_max_loras * self.adapter)

    def of(self, adapters: int) -> int:
        return self.fixed + adapters * self.adapter

    def fitting(self, room: int) -> int:
        return max(0, room - self.fixed) // self.adapter


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"

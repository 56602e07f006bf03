"""How large the adapters may be that a replica serves, and how many of them it keeps in memory.

vLLM has two tiers for adapters. *Slots* (``max_loras``) take part in a batch; each is as large as an adapter of the
largest rank, whatever it holds. The *cache* (``max_cpu_loras``) holds adapters in every engine process's memory, each at
its own rank; what falls out of it is read from its files again, inside the engine's loop. Two mistakes end the engine:
a cache that outgrows the memory, and files that are gone when they are read again. Against the first the cache is sized
here; the second is the care of whoever removes files.

    largest rank   what plans of this base ask for (default contract, every preset), or a stored adapter's larger one, as
                   far as a batch of adapters and one more have room
    cache          what the memory for adapters holds at that rank

What a setting says is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.settings import LORA_RANKS, ServingSettings, round_rank
from shared.contract import AdapterSection
from shared.errors import Code, InvalidRequest
from shared.model_config import ModelConfig
from shared.model_tensors import HEAD, expected_tensors, lora_modules, parameter_count
from shared.presets import preset_names, preset_values, size_row
from shared.profiles import Bound
from shared.servability import HEAD_FAMILIES

RANK = "adapter.rank"
MEMORY_SHARE = 4
"""Adapters may have one part in so many of the memory."""

MOST_CACHED = 1024
"""vLLM copies the list of its cached adapters for every adapter of every step; a thousand cost microseconds."""

FILE_ELEMENT_BYTES = 4
"""Adapters are stored in fp32; one is in memory so while it is loaded."""


@dataclass(frozen=True, slots=True)
class LoraSizes:
    """What vLLM is told of adapters.

    Attributes:
        max_rank: largest rank that is served, one of vLLM's own.
        max_loras: different adapters in a batch.
        max_cpu_loras: adapters in memory.
        adapter_bytes: of one adapter of the largest rank, in all engine processes together.
        room: bytes that adapters may have in memory.
    """

    max_rank: int
    max_loras: int
    max_cpu_loras: int
    adapter_bytes: int
    room: int

    def __str__(self) -> str:
        return (
            f"adapters up to rank {self.max_rank}, {self.max_loras} in a batch, {self.max_cpu_loras} in memory"
            f" ({_mib(self.adapter_bytes)} each at that rank, {_mib(self.room)} for all)"
        )


def planned_rank(config: ModelConfig) -> int:
    """Largest rank that plans of this base ask for when nobody names another: the contract's own, or a preset's."""
    size = size_row(parameter_count(expected_tensors(config)), None)
    bound = size.bounds.get(RANK, Bound()) if size else Bound()
    presets = (preset_values(name).get(RANK, 0) for name in preset_names())
    return max(AdapterSection().rank, *(int(bound.clamp(rank)) for rank in presets))


def choose_sizes(
    settings: ServingSettings, config: ModelConfig, *, dtype: str, stored_rank: int, memory: int
) -> LoraSizes:
    """Complete what the settings leave open.

    Args:
        settings: the replica's.
        config: of the served base.
        dtype: in which the engine computes, or ``auto``.
        stored_rank: largest rank of a stored adapter of this base; 0 when there is none.
        memory: bytes that this machine or container has.

    Raises:
        InvalidRequest: ``ADAPTERS_DO_NOT_FIT``: not even those of one batch and one more have room.
    """
    room = settings.serving_lora_memory_bytes or memory // MEMORY_SHARE
    asked, in_batch = settings.serving_max_cpu_loras, settings.serving_max_loras
    least = asked or in_batch + 1
    ranks = _ranks(settings, config, stored_rank)
    for rank in ranks:
        need = _Need(settings, config, rank, dtype)
        fitting = need.fitting(room)
        # A number that was asked for is taken as it is, but then at no larger rank than plans ask for.
        if fitting >= least or (asked and rank == ranks[-1]):
            cached = asked or min(fitting, max(least, MOST_CACHED))
            return LoraSizes(rank, in_batch, cached, need.adapter, room)
    raise _no_room(need.of(least), rank, least, room)


def _ranks(settings: ServingSettings, config: ModelConfig, stored_rank: int) -> list[int]:
    """Ranks that will do, best first: one adapter of a huge rank must not keep a replica from starting."""
    if settings.serving_max_lora_rank:
        return [settings.serving_max_lora_rank]
    planned = round_rank(planned_rank(config))
    wanted = max(planned, round_rank(min(stored_rank, LORA_RANKS[-1])))
    return [rank for rank in reversed(LORA_RANKS) if planned <= rank <= wanted]


class _Need:
    """Bytes that adapters of one rank take in memory, in all engine processes together."""

    def __init__(self, settings: ServingSettings, config: ModelConfig, rank: int, dtype: str) -> None:
        # Each process of a tensor or pipeline group holds every cached adapter whole.
        processes = settings.serving_tensor_parallel * settings.serving_pipeline_parallel
        element = 4 if dtype == "float32" else 2
        tensors = [rank * width for pair in _modules(config).values() for width in pair]
        pinned = settings.serving_device == "cuda"
        self.adapter = processes * sum(_held(element * size, pinned=pinned) for size in tensors)
        loading = processes * FILE_ELEMENT_BYTES * sum(tensors)
        # On a CPU the slots are in this memory too.
        self.fixed = loading + (0 if pinned else settings.serving_max_loras * self.adapter)

    def of(self, adapters: int) -> int:
        return self.fixed + adapters * self.adapter

    def fitting(self, room: int) -> int:
        return max(0, room - self.fixed) // self.adapter


def _modules(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """The layers that an adapter may change: all linear ones, and the head where the engine lets it."""
    head = {HEAD: (config.hidden, config.vocab)} if not config.tied and config.family in HEAD_FAMILIES else {}
    return lora_modules(config) | head


def _held(size: int, *, pinned: bool) -> int:
    """torch rounds page-locked memory up to a power of two."""
    return 1 << (size - 1).bit_length() if pinned else size


def _no_room(need: int, rank: int, least: int, room: int) -> InvalidRequest:
    return InvalidRequest(
        Code.ADAPTERS_DO_NOT_FIT,
        f"{least} adapters of rank {rank} take {_mib(need)} of memory, and adapters may have {_mib(room)}.",
        remedy="Lower MENS_SERVING_MAX_LORAS or MENS_SERVING_MAX_LORA_RANK, or raise MENS_SERVING_LORA_MEMORY_BYTES.",
        param="MENS_SERVING_LORA_MEMORY_BYTES",
        details={"rank": rank, "adapters": least, "needed_bytes": need, "allowed_bytes": room},
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"

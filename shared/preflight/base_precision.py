"""Decide the precision of the base if it is left open: unquantised if that fits with headroom, otherwise NF4. Pure
arithmetic.

NF4 costs more than speed: the adapter is exact only on the quantised weights, but replicas serve the original ones. The
resulting difference is the certificate's base shift; full precision avoids it.
"""

from __future__ import annotations

import math

from shared.base_models.config import ModelConfig
from shared.contract.base_quant import is_open, pair_of, with_pair
from shared.contract.choices import AdapterMethod, BaseQuant, HeldBase
from shared.contract.contracts import FineTuneContract
from shared.preflight.activations import Recompute
from shared.preflight.estimate import longest_row, memory_limit, vram_parts
from shared.preflight.types import BasePrecision, Configuration, Machine

HEADROOM = 0.85
"""Share of the job's memory that full precision may fill, by the estimate."""
CASE = "with full-length rows and recomputed activations"
MAX_TOKENS = 8_192
"""Tokens of the micro-batch that must fit; larger ones are faster on a GPU, but do not justify NF4."""


def decide(
    contract: FineTuneContract,
    config: ModelConfig,
    machine: Machine,
    *,
    on_gpu: bool,
    tokens: int | None = None,
    of_parent: HeldBase | None = None,
) -> BasePrecision:
    """Decide the precision of the frozen base, with the reason.

    Args:
        contract: its pair of method and precision may be open.
        tokens: number of tokens of the micro-batch that must fit; None: those of a step of the contract, within :data:`MAX_TOKENS`.
        of_parent: precision of the base that the run's parent was trained on; None: a run without a parent, or unknown.
    """
    exec_ = contract.exec
    longest = longest_row(contract)
    step = exec_.batch_size * exec_.grad_accum * longest
    needs = needed_bytes(contract, config, tokens or max(longest, min(MAX_TOKENS, step)), on_gpu=on_gpu)
    room = room_bytes(contract, machine, on_gpu=on_gpu)
    if not is_open(contract):
        base, reason = pair_of(contract)[1], "the contract says so"
    elif contract.artifact.publish and machine.limits and machine.limits.only_twins:
        base, reason = BaseQuant.NF4, "only the NF4 twin of this base is served"
    elif machine.quant_base is not BaseQuant.AUTO:
        base, reason = machine.quant_base, "MENS_QUANT_BASE says so"
    elif of_parent is BaseQuant.NF4:
        base, reason = BaseQuant.NF4, "the adapter that it continues from was trained over NF4"
    elif room is None:
        base, reason = BaseQuant.NF4, "the memory of the training machine is not known"
    elif needs > room:
        base, reason = BaseQuant.NF4, f"full precision {CASE} needs {_gib(needs)}, and may fill only {_gib(room)}"
    else:
        base, reason = BaseQuant.NONE, f"{CASE} it needs {_gib(needs)}, and may fill {_gib(room)}"
    held = "nf4" if base is BaseQuant.NF4 else "bfloat16" if on_gpu else "float32"
    return BasePrecision(precision=held, reason=reason, full_precision_bytes=needs, room_bytes=room)


def needed_bytes(contract: FineTuneContract, config: ModelConfig, tokens: int, *, on_gpu: bool) -> int:
    """Return the memory of a run on the unquantised base, with recomputed activations and micro-batches of ``tokens``
    tokens.
    """
    unquantised = with_pair(contract, AdapterMethod.LORA, BaseQuant.NONE)
    least = Configuration(batch_size=1, grad_accum=1, seq_len=tokens, recompute=Recompute.BLOCKS)
    return vram_parts(unquantised, config, least, on_gpu=on_gpu).total


def room_bytes(contract: FineTuneContract, machine: Machine, *, on_gpu: bool) -> int | None:
    """Return the bytes that a run on the unquantised base may use; None if the machine's memory is unknown."""
    memory = machine.memory(on_gpu=on_gpu)
    if memory is None:
        return None
    limit = memory_limit(contract, memory)
    if on_gpu and machine.free_bytes is not None:
        limit = min(limit, machine.free_bytes)
    return math.floor(HEADROOM * limit)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"

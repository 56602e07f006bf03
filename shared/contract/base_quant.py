"""Adapter method and precision of the base: they are a single choice, so if one is set, it determines the other.

written means qlora, or backend candle the base in NF4 lora, or backend burn the base unquantised nf4 qlora none lora
nothing open: `shared/preflight/base_precision.py` decides by the machine; until then it counts as QLoRA
"""

from __future__ import annotations

from typing import Any

from shared.contract.choices import AdapterMethod, Backend, BaseQuant, HeldBase, Kernel, TrainedMethod
from shared.contract.contracts import FineTuneContract

METHODS: dict[HeldBase, TrainedMethod] = {BaseQuant.NF4: AdapterMethod.QLORA, BaseQuant.NONE: AdapterMethod.LORA}
BASES: dict[TrainedMethod, HeldBase] = {AdapterMethod.QLORA: BaseQuant.NF4, AdapterMethod.LORA: BaseQuant.NONE}
KERNEL_BASES: dict[Backend, HeldBase] = {Kernel.CANDLE_QLORA: BaseQuant.NF4, Kernel.BURN_LORA: BaseQuant.NONE}


def is_open(contract: FineTuneContract) -> bool:
    """Return whether the contract sets neither method, precision nor backend."""
    is_auto = contract.adapter.method is AdapterMethod.AUTO and contract.quant.base is BaseQuant.AUTO
    return is_auto and contract.exec.backend is None


def pair_of(contract: FineTuneContract, open_base: HeldBase = BaseQuant.NF4) -> tuple[TrainedMethod, HeldBase]:
    """Return method and precision, neither of them ``auto``; a pair that is set is kept, whether or not it can run.

    Args:
        open_base: the precision if neither is set.
    """
    method, base = contract.adapter.method, contract.quant.base
    if base is BaseQuant.AUTO:
        backend = contract.exec.backend
        named = KERNEL_BASES[backend] if backend else open_base
        base = named if method is AdapterMethod.AUTO else BASES[method]
    return METHODS[base] if method is AdapterMethod.AUTO else method, base


def pair_values(contract: FineTuneContract, open_base: HeldBase = BaseQuant.NF4) -> dict[str, Any]:
    """Return the pair's values by field path."""
    method, base = pair_of(contract, open_base)
    return {"adapter.method": method, "quant.base": base}


def settled(contract: FineTuneContract, open_base: HeldBase = BaseQuant.NF4) -> FineTuneContract:
    """Return the contract with its pair decided; the same object if it already is."""
    method, base = pair_of(contract, open_base)
    if (method, base) == (contract.adapter.method, contract.quant.base):
        return contract
    return with_pair(contract, method, base)


def with_pair(contract: FineTuneContract, method: TrainedMethod, base: HeldBase) -> FineTuneContract:
    """Return the contract with another pair of method and precision."""
    changes = {
        "adapter": contract.adapter.model_copy(update={"method": method}),
        "quant": contract.quant.model_copy(update={"base": base}),
    }
    return contract.model_copy(update=changes)

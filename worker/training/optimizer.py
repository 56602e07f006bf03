"""The optimizers, and their state as tensors for a checkpoint.

- ``adamw``: AdamW (arXiv 1711.05101), both moments in fp32.
- ``paged_adamw_8bit``: bitsandbytes' AdamW with moments in blocks of 8 bit (arXiv 2110.02861). Despite its name they are
  not paged (arXiv 2305.14314 §3): with LoRA they are small, many virtual GPUs have no managed memory, and paging may
  hang a GPU that other programs share. Tensors under 4096 elements keep fp32 moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from bitsandbytes.optim import AdamW8bit
from bitsandbytes.optim.optimizer import Optimizer8bit

from shared.contract.choices import OptimizerKind
from shared.contract.contracts import FineTuneContract

BETAS = (0.9, 0.999)
EPSILON = 1e-8
MOMENTS = ("exp_avg", "exp_avg_sq")
CODE_BOOKS = ("qmap1", "qmap2")
"""Constants that all parameters share: recreated, never stored."""


def build_optimizer(parameters: Sequence[torch.nn.Parameter], contract: FineTuneContract) -> torch.optim.Optimizer:
    """Build the optimizer that the contract names, over the LoRA parameters; the loop sets the rate at each step."""
    fields: dict[str, Any] = {
        "lr": contract.exec.learning_rate,
        "betas": BETAS,
        "eps": EPSILON,
        "weight_decay": contract.exec.weight_decay,
    }
    if contract.optimizer.kind is OptimizerKind.ADAMW:
        # One kernel without temporary buffers: a step that runs out of memory halfway cannot be repeated. On a CPU it
        # takes a quarter of the time of torch's loop.
        return torch.optim.AdamW(parameters, fused=True, **fields)
    optimizer: torch.optim.Optimizer = AdamW8bit(parameters, **fields)
    return optimizer


def allocate_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the state of parameters that have a gradient but no state yet, as their first step would.

    A step that runs out of memory halfway has already changed some parameters and cannot be repeated; this allocation
    can.
    """
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if parameter.grad is None or optimizer.state.get(parameter):
                continue
            if isinstance(optimizer, Optimizer8bit):
                optimizer.init_state(group, parameter, group_index, index)
            else:
                moments = {name: torch.zeros_like(parameter, memory_format=torch.preserve_format) for name in MOMENTS}
                optimizer.state[parameter] = {"step": torch.zeros((), device=parameter.device), **moments}


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]
) -> dict[str, torch.Tensor]:
    """Return the state by ``<index of a parameter>.<name>``, on the CPU; parameters that were never updated have none."""
    return {
        f"{index}.{name}": torch.as_tensor(value).cpu().contiguous()
        for index, parameter in enumerate(parameters)
        for name, value in optimizer.state[parameter].items()
        if name not in CODE_BOOKS
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter], tensors: dict[str, torch.Tensor]
) -> None:
    """Restore the result of :func:`optimizer_tensors` onto the parameters' devices, to continue from there."""
    for index, parameter in enumerate(parameters):
        prefix = f"{index}."
        stored = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if not stored:
            continue
        if isinstance(optimizer, Optimizer8bit):
            _restore_8bit(optimizer, parameter, stored)
        else:
            optimizer.state[parameter] = {name: value.to(parameter.device) for name, value in stored.items()}


def _restore_8bit(optimizer: Any, parameter: torch.nn.Parameter, stored: dict[str, torch.Tensor]) -> None:
    """Let the optimizer create its own buffers and fill them."""
    group_index, index = _place(optimizer, parameter)
    optimizer.init_state(optimizer.param_groups[group_index], parameter, group_index, index)
    state = optimizer.state[parameter]
    for name, value in stored.items():
        if name == "step":
            state[name] = int(value)
        else:
            state[name].copy_(value)


def _place(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> tuple[int, int]:
    """Return the parameter's place in the optimizer: (group, index in it)."""
    return next(
        (group_index, index)
        for group_index, group in enumerate(optimizer.param_groups)
        for index, candidate in enumerate(group["params"])
        if candidate is parameter
    )

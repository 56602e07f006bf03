"""Run a peft model's LoRA layers through the fused functions of `worker/training/model/fused_functions.py`.

Only the computation of modules changes, through a new forward on the instances concerned. Parameters, names, saving,
loading, merging and the optimizer see the same PEFT model as before, and everything that peft does apart from training
(adapters switched off, merged, unloaded, added) uses peft's own forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeGuard

from bitsandbytes.nn import Linear4bit
from peft import PeftModel
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.bnb import Linear4bit as LoraLinear4bit
from torch import nn
from transformers.activations import SiLUActivation

from worker.training.model.fused_modules import SWIGLU, FusedMlp, InputGroup, Projection, compute_dtype_of

# Children that decoder families call in succession on the same tensor.
SHARED_INPUTS = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),  # Qwen3.5's linear attention
)


@dataclass(frozen=True)
class FusionReport:
    """Counts of the fused layers.

    Attributes:
        qkv: groups of projections that share their input, mostly one per attention layer.
        mlp: whole SwiGLU MLPs.
        single: LoRA layers with a function of their own.
        left: LoRA layers that keep peft's forward: dropout, DoRA, several adapters, other kinds of layers.
        dequantised_bytes: size of the cache of dequantised weights.
        kernels: whether all of Triton's kernels that the model uses run (`kernels/choice.py`).
    """

    qkv: int
    mlp: int
    single: int
    left: int
    dequantised_bytes: int
    kernels: bool = False


def fuse_lora(model: PeftModel, *, cache_dequantised: bool) -> FusionReport:
    """Fuse all layers that can be fused; call it once, when the model is on its device.

    Args:
        cache_dequantised: whether to keep each NF4 weight of a fused layer dequantised too. The numbers are the same;
            it saves work in every pass, and takes 2 bytes per weight (bf16) or 4 (fp32).
    """
    mlps = list(_fuse_mlps(model))
    taken = _modules_of(mlps)
    groups = list(_fuse_groups(model, taken))
    singles = list(_fuse_singles(model, taken | _modules_of(groups)))
    owners: list[InputGroup | FusedMlp] = [*mlps, *groups, *singles]
    fused = [projection for owner in owners for projection in owner.projections]
    if cache_dequantised:
        for projection in fused:
            projection.keep_dequantised()
    return FusionReport(
        qkv=len(groups),
        mlp=len(mlps),
        single=len(singles),
        left=sum(isinstance(module, LoraLayer) for module in model.modules())
        - sum(projection.adapter is not None for projection in fused),
        dequantised_bytes=sum(projection.cached_bytes for projection in fused),
    )


def _fuse_mlps(model: nn.Module) -> Iterator[FusedMlp]:
    for module in list(model.modules()):
        projections = _projections_of(module, SWIGLU)
        if len(projections) == len(SWIGLU) and _has_swiglu_shape(module):
            mlp = FusedMlp(module, projections)
            if mlp.agrees_with_original():
                mlp.install()
                yield mlp


def _has_swiglu_shape(module: nn.Module) -> bool:
    activation = getattr(module, "act_fn", None)
    return isinstance(activation, nn.SiLU | SiLUActivation) and len(signature(module.forward).parameters) == 1


def _fuse_groups(model: nn.Module, taken: set[nn.Module]) -> Iterator[InputGroup]:
    for module in list(model.modules()):
        for names in SHARED_INPUTS:
            projections = [
                projection for projection in _projections_of(module, names) if projection.module not in taken
            ]
            if (
                len(projections) > 1
                and len({(projection.dtype, projection.base.in_features) for projection in projections}) == 1
            ):
                group = InputGroup(projections)
                module.register_forward_hook(group.forget, always_call=True)
                yield group


def _fuse_singles(model: nn.Module, taken: set[nn.Module]) -> Iterator[InputGroup]:
    for module in list(model.modules()):
        if isinstance(module, LoraLayer) and module not in taken and (projection := _as_projection(module)):
            yield InputGroup([projection])


def _modules_of(owners: Iterable[InputGroup | FusedMlp]) -> set[nn.Module]:
    return {projection.module for owner in owners for projection in owner.projections}


def _projections_of(parent: nn.Module, names: Sequence[str]) -> list[Projection]:
    """Return the children with the given names that can be fused; empty if none of them has LoRA."""
    children = dict(parent.named_children())
    projections = [projection for name in names if name in children and (projection := _as_projection(children[name]))]
    return projections if any(projection.adapter is not None for projection in projections) else []


def _as_projection(module: nn.Module) -> Projection | None:
    """Return the module as a projection; None if it is already fused or keeps its forward (see `FusionReport.left`)."""
    adapter: str | None = None
    base = module
    if isinstance(module, LoraLayer):
        adapter, base = _plain_adapter(module), module.get_base_layer()
        if adapter is None:
            return None
    if "forward" in vars(module) or "forward" in vars(base) or not _is_frozen_linear(base):
        return None
    return Projection(module, base, adapter)


def _plain_adapter(layer: LoraLayer) -> str | None:
    """Return the name of the layer's adapter if it is the only one and not a variant (DoRA, …) and
    has no dropout.
    """
    if type(layer) not in (LoraLinear, LoraLinear4bit) or len(layer.lora_A) != 1:
        return None
    (name,) = layer.lora_A
    dropout = layer.lora_dropout[name]
    is_plain = not layer.lora_variant and not layer.lora_bias[name] and getattr(dropout, "p", 0.0) == 0.0
    return str(name) if is_plain else None


def _is_frozen_linear(base: nn.Module) -> TypeGuard[nn.Linear]:
    if type(base) not in (nn.Linear, Linear4bit) or any(parameter.requires_grad for parameter in base.parameters()):
        return False
    if base.bias is not None and base.bias.dtype != compute_dtype_of(base):
        return False
    if type(base) is nn.Linear:
        return True
    weight: Any = base.weight
    state = weight.quant_state
    is_packed_for_inference = getattr(state, "packing_format_for_cpu", False)
    return state is not None and not is_packed_for_inference and base.compute_dtype in (None, state.dtype)

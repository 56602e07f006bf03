"""A patch of vLLM for Qwen3.5: serve it without torchvision, which a CPU installation does not have, and serve adapters
that change only `in_proj_z`.

vLLM's module of Qwen3.5 includes the vision part. It imports one function of pure arithmetic, `smart_resize`, from a
module of transformers that imports torchvision. Without torchvision, vLLM cannot even inspect the text-only class, and
the server exits. transformers has the same function in its module for Pillow. So this patch replaces the module that
needs torchvision with one that has only this function. The vision part is never loaded (`--language-model-only`), and
other code that looks for torchvision still finds that it is not installed. The replacement is created when it is first
imported, in each of vLLM's processes that needs it.

vLLM computes `in_proj_qkv` and `in_proj_z` as one layer of four slices. For a module that an adapter does not change,
it fills in empty slices. But if the first slice is missing, vLLM (0.32) treats all four as missing and refuses the
adapter.

On a CPU with AMX, vLLM computes the convolution of linear attention with an operator that accepts only contiguous rows.
With LoRA, the rows are views into the wider rows of the packed layer, so the engine would exit at its first prompt.
This patch copies such rows.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

MODULE = "transformers.models.qwen2_vl.image_processing_qwen2_vl"
PILLOW_MODULE = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
FUNCTION = "smart_resize"


class PillowFinder(MetaPathFinder, Loader):
    """Import finder that finds only the replacement module."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Return the module's spec; None for every other name."""
        return ModuleSpec(fullname, self) if fullname == MODULE else None

    def exec_module(self, module: ModuleType) -> None:
        """Add `smart_resize` to the module."""
        setattr(module, FUNCTION, getattr(import_module(PILLOW_MODULE), FUNCTION))


def apply_patch() -> None:
    """Patch this process. Idempotent."""
    if find_spec("torchvision") is None and not any(isinstance(finder, PillowFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PillowFinder())
    _patch_slices()
    _patch_convolution()


def _patch_slices() -> None:
    from vllm.lora.layers.column_parallel_linear import MergedColumnParallelLinearWithLoRA

    expand = MergedColumnParallelLinearWithLoRA.expand_packed_lora
    if getattr(expand, "counts_the_first", False):
        return

    def expand_packed_lora(layer: Any, lora_a: list[Any], lora_b: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the matrices A and B by slice; None if the adapter does not change the layer. Only the first module of
        a packed layer has several slices.
        """
        if lora_b[0] is not None:
            slices: tuple[list[Any], list[Any]] = expand(layer, lora_a, lora_b)
            return slices
        missing = [None] * (layer.n_slices - len(lora_b) + 1)
        return [*missing, *lora_a[1:]], [*missing, *lora_b[1:]]

    expand_packed_lora.counts_the_first = True  # type: ignore[attr-defined]
    MergedColumnParallelLinearWithLoRA.expand_packed_lora = expand_packed_lora


def _patch_convolution() -> None:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    convolve = gdn_attention.ops.causal_conv1d_fwd_cpu
    if getattr(convolve, "copies_views", False):
        return

    def convolve_dense(*, x: torch.Tensor, **others: Any) -> torch.Tensor:
        """Return the convolution of x (channels by tokens); x is copied first unless its tokens are adjacent in memory."""
        tokens = x.transpose(0, 1)
        if tokens.stride() != (tokens.shape[1], 1):
            # Not contiguous(): a single token's view counts as contiguous, whatever its stride.
            tokens = tokens.clone(memory_format=torch.contiguous_format)
        result: torch.Tensor = convolve(x=tokens.transpose(0, 1), **others)
        return result

    convolve_dense.copies_views = True  # type: ignore[attr-defined]
    gdn_attention.ops.causal_conv1d_fwd_cpu = convolve_dense

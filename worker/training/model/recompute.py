"""Recomputes activations in the backward pass instead of keeping them (`shared/preflight/activations.py:Recompute`)."""

from __future__ import annotations

from peft import PeftModel

from shared.preflight.activations import Recompute
from worker.training.model.fused_modules import FusedMlp
from worker.training.model.kernels.blocks import Block


def set_recompute(model: PeftModel, recompute: Recompute) -> None:
    """Set which activations the model's blocks keep; call it after its layers are fused."""
    if recompute is Recompute.BLOCKS:
        # Not reentrant, so the frozen embeddings' output needs no gradient for the blocks to be differentiated.
        model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    if recompute is Recompute.MLPS:
        for module in model.modules():
            owner = getattr(vars(module).get("forward"), "__self__", None)
            if isinstance(owner, Block | FusedMlp):
                owner.recomputes = True

"""A patch of vLLM's LoRA on a CPU: the base model's rows of a batch get no adapter's weights.

vLLM marks such rows with slot -1. Its CPU operators take that for an index, so in a batch with adapters the base computes
with the weights in the last slot: another adapter's, as soon as every slot is taken (vLLM 0.32; vllm pull request 48421).
Here the result of the first of the two LoRA matrices is zero for such rows, as it is in vLLM's GPU kernels.
"""

from __future__ import annotations

from typing import Any

from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform

BASE_SLOT = -1


class PatchedPunicaWrapperCPU(PunicaWrapperCPU):  # type: ignore[misc]  # vLLM is not type-checked with us
    """The class that vLLM uses instead of its own."""

    def add_shrink(self, y: Any, x: Any, lora_a_stacked: Any, scale: float, **kwargs: Any) -> None:
        """``y[i] = x @ lora_a_stacked[i] * scale``, and zero in the base's rows."""
        super().add_shrink(y, x, lora_a_stacked, scale, **kwargs)
        base_rows = self.token_lora_indices == BASE_SLOT
        for part in y:
            part.view(-1, part.shape[-1])[base_rows] = 0


def apply_patch() -> None:
    """Make vLLM use the patched class in this process, if it computes on a CPU."""
    if current_platform.is_cpu():
        path = f"{__name__}.{PatchedPunicaWrapperCPU.__name__}"
        type(current_platform).get_punica_wrapper = classmethod(lambda _: path)

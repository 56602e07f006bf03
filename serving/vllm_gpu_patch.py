"""A patch of vLLM's LoRA on a GPU: the base's ``lm_head`` is not wrapped in a LoRA layer, so adapters that change it
are refused there.

For prompt log-probabilities, vLLM computes the logits of one request's prompt, but uses the mapping from sampled rows
to adapters, which has one entry for each request of the batch (vLLM 0.32, both model runners; vllm issues 16668,
29955). According to its source, on a GPU:

- Row *i* of the prompt gets the adapter of the *i*-th sampled row, which may belong to another tenant. Rows after the
  last sampled row get no adapter.
- If the prompt has fewer rows than the batch has sampled rows, the kernels write beyond the end of their buffer.

Both happen only if the logits pass through a LoRA layer. vLLM wraps every untied head in one, even if no adapter has
weights for it. `serving/vllm_cpu_patch.py` corrects the mapping on a CPU, where `tests/vllm/test_cpu_patch.py` measures
it; on a GPU the head is not wrapped.
"""

from __future__ import annotations

from typing import Any

from vllm.lora import model_manager
from vllm.platforms import current_platform

from shared.base_models.tensors import HEAD


def apply_patch() -> None:
    """Exclude ``lm_head`` from the modules that vLLM wraps in this process, unless it computes on a CPU. Idempotent."""
    is_supported = model_manager.is_supported_lora_module
    if current_platform.is_cpu() or getattr(is_supported, "leaves_head_out", False):
        return

    def is_supported_and_no_head(module_name: str, *args: Any, **more: Any) -> bool:
        return module_name.rpartition(".")[2] != HEAD and is_supported(module_name, *args, **more)

    is_supported_and_no_head.leaves_head_out = True  # type: ignore[attr-defined]
    model_manager.is_supported_lora_module = is_supported_and_no_head

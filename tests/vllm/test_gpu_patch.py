"""The patch for GPUs, as far as it can be tested without one: vLLM wraps every linear layer except the head."""

from __future__ import annotations

import inspect

import pytest


@pytest.mark.parametrize("is_cpu", [True, False])
def test_head_is_left_out_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch, is_cpu: bool) -> None:
    from vllm.lora import model_manager
    from vllm.platforms import current_platform

    from serving import vllm_gpu_patch

    names = ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj", "lm_head"]
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: is_cpu)
    # vLLM's own asks whether it has a LoRA layer for the module; undone after the test, whatever the patch does to it.
    monkeypatch.setattr(model_manager, "is_supported_lora_module", lambda *_: True)
    for _ in range(2):
        vllm_gpu_patch.apply_patch()
        wrapped = [name for name in names if model_manager.is_supported_lora_module(name, None, [])]
        assert wrapped == (names if is_cpu else names[:-1])


def test_vllm_still_needs_the_patch() -> None:
    """When this fails, vLLM may know whose prompt it scores: read it again, and measure it on a GPU."""
    from vllm.lora import model_manager
    from vllm.lora.punica_wrapper.punica_gpu import PunicaWrapperGPU

    assert "is_supported_lora_module(" in inspect.getsource(model_manager.LoRAModelManager._create_lora_modules)
    assert "prompt_mapping_meta" in inspect.getsource(PunicaWrapperGPU.add_lora_logits)

"""The patch of vLLM's CPU build: in a batch with adapters the base's rows get no adapter's weights."""

from __future__ import annotations

import threading

SLOTS = 2
ROWS = (0, 1, 2, 0)
"""Adapter of each row of the batch; 0 is the base."""


def lora_delta(wrapper_class):
    """What a LoRA layer adds to each row, and what it should add to the adapters' rows."""
    import torch
    from vllm.lora.layers import LoRAMapping

    torch.manual_seed(0)
    wrapper = wrapper_class(max_num_batched_tokens=8, max_batches=8, device="cpu")
    wrapper.update_metadata(LoRAMapping(ROWS, ROWS, is_prefill=True), [1, 2], SLOTS, vocab_size=8)
    x, a, b = torch.randn(len(ROWS), 6), torch.randn(SLOTS, 1, 3, 6), torch.randn(SLOTS, 1, 5, 3)
    y = torch.zeros(len(ROWS), 5)
    wrapper.add_lora_linear(y, x, (a,), (b,), 0.5, (5,))
    return y, torch.stack([0.5 * b[slot, 0] @ a[slot, 0] @ x[row] for row, slot in ((1, 0), (2, 1))])


def test_base_rows_get_nothing_and_adapter_rows_theirs():
    import torch

    from serving.vllm_cpu_patch import PatchedPunicaWrapperCPU

    found, expected = lora_delta(PatchedPunicaWrapperCPU)
    assert not found[[0, 3]].any()
    torch.testing.assert_close(found[1:3], expected)


def test_vllm_still_needs_the_patch():
    """When this fails, vLLM has fixed the bug: remove serving/vllm_cpu_patch.py."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    assert lora_delta(PunicaWrapperCPU)[0][[0, 3]].any()


def test_base_is_unchanged_beside_a_full_batch_of_adapters(vllm_server, serving_installation):
    slots = serving_installation.settings().serving_max_loras
    adapters = [serving_installation.publish(f"beside{number}", seed=20 + number).adapter_id for number in range(slots)]

    def generate(model, tokens):
        body = {"model": model, "prompt": "the red fox", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        with vllm_server.client() as client:
            response = client.post("/v1/completions", json=body | {"return_token_ids": True})
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["token_ids"]

    alone = generate(serving_installation.entry.name, 16)
    for adapter in adapters:
        # Loaded now, so that all run at once.
        generate(adapter, 1)
    others = [threading.Thread(target=generate, args=(adapter, 200)) for adapter in adapters]
    for other in others:
        other.start()
    beside = [generate(serving_installation.entry.name, 16) for _ in range(5)]
    assert any(other.is_alive() for other in others), "the base responded while adapters did"
    for other in others:
        other.join()
    assert beside == [alone] * 5

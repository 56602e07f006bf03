"""In a batch with adapters the base answers as the base: vLLM's CPU build gives it another adapter's weights."""

from __future__ import annotations

import threading

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

SLOTS = 2
ROWS = (0, 1, 2, 0)
"""Adapter of each row of the batch; 0 is the base."""


def added(wrapper_class):
    """What a LoRA layer adds to each row, and what it ought to add to the adapters' rows."""
    import torch
    from vllm.lora.layers import LoRAMapping

    torch.manual_seed(0)
    wrapper = wrapper_class(max_num_batched_tokens=8, max_batches=8, device="cpu")
    wrapper.update_metadata(LoRAMapping(ROWS, ROWS, is_prefill=True), [1, 2], SLOTS, vocab_size=8)
    x, a, b = torch.randn(len(ROWS), 6), torch.randn(SLOTS, 1, 3, 6), torch.randn(SLOTS, 1, 5, 3)
    y = torch.zeros(len(ROWS), 5)
    wrapper.add_lora_linear(y, x, (a,), (b,), 0.5, (5,))
    return y, torch.stack([0.5 * b[slot, 0] @ a[slot, 0] @ x[row] for row, slot in ((1, 0), (2, 1))])


def test_the_base_gets_nothing_and_the_adapters_theirs():
    import torch

    from serving.cpu_lora import BaseRowsUntouched

    found, expected = added(BaseRowsUntouched)
    assert not found[[0, 3]].any()
    torch.testing.assert_close(found[1:3], expected)


def test_vllm_still_needs_it():
    """When this fails, vLLM has mended it: remove serving/cpu_lora.py."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    assert added(PunicaWrapperCPU)[0][[0, 3]].any()


def test_the_base_beside_as_many_adapters_as_there_are_slots(vllm_server, lab):
    slots = lab.settings().serving_max_loras
    adapters = [lab.publish(f"beside{number}", seed=20 + number).adapter_id for number in range(slots)]

    def answer(model, tokens):
        body = {"model": model, "prompt": "the red fox", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        with vllm_server.client() as client:
            response = client.post("/v1/completions", json=body | {"return_token_ids": True})
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["token_ids"]

    alone = answer(lab.entry.name, 16)
    for adapter in adapters:
        answer(adapter, 1)  # loaded, so that all run at once
    others = [threading.Thread(target=answer, args=(adapter, 200)) for adapter in adapters]
    for other in others:
        other.start()
    beside = [answer(lab.entry.name, 16) for _ in range(5)]
    assert any(other.is_alive() for other in others), "the base was asked while adapters were"
    for other in others:
        other.join()
    assert beside == [alone] * 5

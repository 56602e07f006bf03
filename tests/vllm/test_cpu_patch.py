"""The patch of vLLM's CPU build: each row of a batch gets its own request's adapter, also when prompts are scored."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.support.waiting import eventually

SLOTS = 2
ROWS = (0, 1, 2, 0)
"""Adapter of each row of the batch; 0 is the base."""


def lora_delta(wrapper_class):
    """Return the values that a LoRA layer adds to each row, and those that it should add to the adapters' rows."""
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


@pytest.mark.parametrize("slots", [(0, 0, 0), (2, 2, 2), (1,), (2, 0, 1, 1, 0, 2, 2)], ids=str)
def test_each_slice_of_a_layer_gets_the_rows_own_matrices(slots):
    """As where query, key and value are one layer, for any batch: one adapter's alone, the base's alone, or mixed."""
    import torch
    from vllm.lora.layers import LoRAMapping

    from serving.vllm_cpu_patch import PatchedPunicaWrapperCPU

    torch.manual_seed(0)
    wrapper = PatchedPunicaWrapperCPU(max_num_batched_tokens=8, max_batches=8, device="cpu")
    wrapper.update_metadata(LoRAMapping(slots, slots, is_prefill=True), [1, 2], SLOTS, vocab_size=8)
    x, base, widths = torch.randn(len(slots), 6), torch.randn(len(slots), 9), (5, 1, 3)
    a = tuple(torch.randn(SLOTS, 1, 2, 6) for _ in widths)
    b = tuple(torch.randn(SLOTS, 1, width, 2) for width in widths)
    y = base.clone()
    wrapper.add_lora_linear(y, x, a, b, 0.5, widths)
    for row, adapter in enumerate(slots):
        delta = torch.cat(
            [0.5 * up[adapter - 1, 0] @ down[adapter - 1, 0] @ x[row] for down, up in zip(a, b, strict=True)]
        )
        torch.testing.assert_close(y[row], base[row] + delta if adapter else base[row])


def test_vllm_still_needs_the_patch():
    """When this fails, vLLM has fixed the bug: remove serving/vllm_cpu_patch.py."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    assert lora_delta(PunicaWrapperCPU)[0][[0, 3]].any()


def head_delta(wrapper_class, rows):
    """Return the values that a LoRA of ``lm_head`` adds to the logits of this many rows, and those that the adapters 1
    and 2 would add to each.
    """
    import torch
    from vllm.lora.layers import LoRAMapping

    torch.manual_seed(0)
    wrapper = wrapper_class(max_num_batched_tokens=8, max_batches=8, device="cpu")
    wrapper.update_metadata(LoRAMapping(ROWS, ROWS, is_prefill=True), [1, 2], SLOTS, vocab_size=8)
    x, a, b = torch.randn(rows, 6), torch.randn(SLOTS, 1, 3, 6), torch.randn(SLOTS, 1, 5, 3)
    y = torch.zeros(rows, 5)
    wrapper.add_lora_logits(y, x, a, b, 0.5)
    return y, [torch.stack([0.5 * b[slot, 0] @ a[slot, 0] @ row for row in x]) for slot in range(SLOTS)]


def test_sampled_rows_get_the_head_of_their_adapter():
    import torch

    from serving.vllm_cpu_patch import PatchedPunicaWrapperCPU

    found, (first, second) = head_delta(PatchedPunicaWrapperCPU, len(ROWS))
    assert not found[[0, 3]].any()
    torch.testing.assert_close(found[1:3], torch.stack([first[1], second[2]]))


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("adapter", [0, 1, 2])
def test_rows_of_a_prompt_get_the_head_of_its_own_adapter(rows, adapter):
    """However many requests are in the batch, and whatever adapters they have."""
    import torch

    from serving.vllm_cpu_patch import PatchedPunicaWrapperCPU, prompt_adapter

    token = prompt_adapter.set(adapter)
    try:
        found, deltas = head_delta(PatchedPunicaWrapperCPU, rows)
    finally:
        prompt_adapter.reset(token)
    torch.testing.assert_close(found, deltas[adapter - 1] if adapter else torch.zeros_like(found))


def test_vllm_still_fails_on_the_rows_of_a_prompt():
    """When this fails, vLLM has fixed the bug (vllm issue 16668): remove this part of serving/vllm_cpu_patch.py."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    with pytest.raises(RuntimeError):
        head_delta(PunicaWrapperCPU, 7)


@contextmanager
def repeated_requests(server, ask, models):
    """Each model is asked again and again, all of them at once, for as long as the block takes; every answer is checked by ``ask``."""
    over = threading.Event()

    def keep_asking(model):
        while not over.is_set():
            ask(model)

    with ThreadPoolExecutor(len(models)) as pool:
        asking = [pool.submit(keep_asking, model) for model in models]
        try:
            eventually(lambda: running(server) >= len(models), what="all are under way")
            yield
        finally:
            over.set()
        for each in asking:
            each.result()


def running(server):
    """Requests that the engine works on at once."""
    (count,) = re.findall(r"^vllm:num_requests_running\{.*\} ([\d.]+)", server.metrics(), re.MULTILINE)
    return float(count)


def test_prompts_are_scored_during_streams(vllm_server, serving_installation):
    """A caller's ``echo`` with ``logprobs``, and every job's own proof, together with all other requests of the batch."""
    models = [serving_installation.entry.name, serving_installation.publish("scored", seed=31).adapter_id]

    def ask(**body):
        with vllm_server.client() as client:
            response = client.post("/v1/completions", json={"prompt": "the red fox", "temperature": 0, **body})
        assert response.status_code == 200, response.text
        return response.json()["choices"]

    def score(model):
        (choice,) = ask(model=model, max_tokens=1, prompt_logprobs=1)
        return [next(iter(token.values()))["logprob"] for token in choice["prompt_logprobs"] if token]

    alone = [score(model) for model in models]
    assert alone[0] != alone[1]
    with repeated_requests(vllm_server, lambda model: ask(model=model, max_tokens=200, ignore_eos=True), models * 2):
        beside = [[score(model) for model in models] for _ in range(3)]
        echoed = ask(model=models[1], prompt=["the red fox runs", "a ship"], echo=True, logprobs=2, max_tokens=1)
    for scores in beside:
        assert scores == [pytest.approx(each, abs=1e-4) for each in alone]
    assert [choice["text"].startswith(("the red", "a ship")) for choice in echoed] == [True, True]


def test_base_is_unchanged_in_a_full_batch_of_adapters(vllm_server, serving_installation):
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
    with repeated_requests(vllm_server, lambda adapter: generate(adapter, 200), adapters):
        beside = [generate(serving_installation.entry.name, 16) for _ in range(5)]
    assert beside == [alone] * 5

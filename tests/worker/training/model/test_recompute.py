"""Values that are recomputed in the backward pass equal the saved ones bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.training.counted_model import counted_model, micro_batch
from shared.preflight.activations import Recompute
from tests.support.tiny_models import RAW
from worker.training.model.kernels.blocks import Block
from worker.training.model.load import trainable
from worker.training.supervised import SupervisedMethod

CPU = torch.device("cpu")
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "qwen3_5_text"]


def learn(family: str, recompute: Recompute) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Loss, the adapter's gradients, and the norms that ran in the backward pass."""
    torch.manual_seed(3)
    raw: dict[str, Any] = RAW[family] | {"initializer_range": 0.1}
    model = counted_model(raw, device=CPU, rank=4, recompute=recompute)
    for parameter in trainable(model):
        torch.nn.init.normal_(parameter, std=0.1)
    loss = SupervisedMethod().loss(model, micro_batch(2, 20), CPU, 7.0).loss
    norms: list[object] = []
    for module in model.modules():
        if isinstance(getattr(vars(module).get("forward"), "__self__", None), Block):
            for norm in (module.input_layernorm, module.post_attention_layernorm):
                norm.register_forward_hook(lambda *_: norms.append(None))
    loss.backward()
    return loss.detach(), [one.grad for one in trainable(model)], len(norms)


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_norms_and_mlps_change_no_bit(family: str) -> None:
    loss, gradients, before = learn(family, Recompute.NONE)
    again, same, norms = learn(family, Recompute.MLPS)
    assert torch.equal(loss, again)
    assert len(gradients) > 8
    assert all(torch.equal(one, other) for one, other in zip(gradients, same, strict=True))
    assert (before, norms) == (0, 2 * RAW[family]["num_hidden_layers"])


def test_without_gradients_nothing_is_recomputed() -> None:
    model = counted_model(RAW["qwen3"], device=CPU, rank=4, recompute=Recompute.MLPS)
    with torch.no_grad():
        assert SupervisedMethod().loss(model, micro_batch(1, 9), CPU).loss.isfinite()

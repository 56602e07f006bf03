"""Models with kernels compute on a CPU as before, bit for bit, and use the kernels if they are chosen."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.training.counted_model import META, as_on_a_gpu, counted_model, micro_batch
from tests.support.tiny_models import RAW, build
from worker.training.model.kernels import blocks, choice
from worker.training.model.kernels.blocks import use_kernels
from worker.training.supervised import SupervisedMethod

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "qwen3_5_text", "gpt2"]
LINEAR_ATTENTION = [
    *("convolved", "delta_inverse", "delta_solved", "delta_states", "delta_outputs"),
    *("convolved_gradient", "delta_direct_gradient", "delta_state_gradients", "delta_output_gradients"),
    "delta_system_gradients",
]
IDS = torch.arange(18).reshape(2, 9) % 90


def learnt(model):
    output = model(input_ids=IDS, labels=IDS, use_cache=False)
    output.loss.backward()
    return [output.logits, *(one.grad for one in model.parameters())]


@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_cpu_every_bit_is_as_before(family):
    model = build(RAW[family]).eval()
    given = copy.deepcopy(model)
    before = learnt(model)
    use_kernels(given)
    assert all(torch.equal(one, other) for one, other in zip(learnt(given), before, strict=True))


class Kernels(TorchDispatchMode):
    """Counts the kernels that are called; on meta tensors they compute nothing."""

    def __init__(self):
        super().__init__()
        self.called = {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.namespace == "mens":
            name = operation.overloadpacket.__name__
            self.called[name] = self.called.get(name, 0) + 1
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("family", "norms", "rotations"),
    # Two norms a block and one at the end; those of queries and keys; one rotation for each layer with full attention.
    [("llama", 9, 4), ("mistral", 9, 4), ("qwen2", 9, 4), ("qwen3", 17, 4), ("qwen3_5_text", 11, 1)],
)
def test_every_norm_rotation_and_mlp_is_a_kernel_on_a_gpu(family, norms, rotations):
    with as_on_a_gpu():
        model = counted_model(RAW[family])
        counted_model(RAW[family])  # a second model of the family finds its function replaced
        with Kernels() as kernels:
            SupervisedMethod().loss(model, micro_batch(2, 9), META, 100.0).loss.backward()
    linear = 4 - rotations if "qwen3_5" in family else 0
    each = dict.fromkeys(LINEAR_ATTENTION, linear) | {"delta_head_gradient": 2 * linear}  # of queries, and of keys
    assert kernels.called == {
        "norm": norms,
        "norm_gradient": norms - 1,  # nothing before the first one learns
        "turn": 2 * rotations,
        "gated": 4,
        "gated_gradients": 4,
        **(each if linear else {}),
    }


def test_another_activation_or_a_weight_of_another_dtype_stays_torchs(monkeypatch):
    monkeypatch.setattr(choice, "runs_kernels", lambda x: True)
    model = build(RAW["llama"], hidden_act="gelu")
    use_kernels(model)
    model.model.layers.double()
    assert not any("forward" in vars(layer.mlp) for layer in model.model.layers)
    assert not blocks.can_norm(model.model.layers[0].input_layernorm, torch.ones(1, 64))
    assert blocks.can_norm(model.model.norm, torch.ones(1, 64))

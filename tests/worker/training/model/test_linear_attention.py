"""Qwen3.5's layers with our forward pass compared with transformers', on a CPU, on meta tensors, and with a simulated
kernel.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.tiny_models import RAW
from worker.training.model import linear_attention
from worker.training.model.attention import DOCUMENTS, can_pack
from worker.training.model.convolution import convolved
from worker.training.model.delta_rule import document_starts
from worker.training.model.kernels.delta_rule.functions import HeadSizes
from worker.training.model.linear_attention import attend, scan, use_own_scan

SYNCS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "item"}
BOUNDARIES = [0, 1, 3, 40, 110]


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**RAW["qwen3_5_text"])).requires_grad_(False)
    ours = copy.deepcopy(theirs)
    use_own_scan(ours)
    return ours, theirs


def packed(model, hidden, boundaries):
    lengths = [end - start for start, end in pairwise(boundaries)]
    positions = torch.cat([torch.arange(length, device=hidden.device) for length in lengths])[None]
    edges = torch.tensor(boundaries, dtype=torch.int32, device=hidden.device)
    return model.model(
        inputs_embeds=hidden, position_ids=positions, cu_seq_lens_q=edges, max_length_q=max(lengths), use_cache=False
    ).last_hidden_state


def test_packed_rows_are_hidden_as_transformers_hides_them_alone(models):
    ours, theirs = models
    assert can_pack(ours, ours.config) and not can_pack(theirs, theirs.config)
    ours.set_attn_implementation(DOCUMENTS)
    one, other = (
        torch.randn(1, 110, 64, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2)
    )
    together = packed(ours, one, BOUNDARIES)
    alone = torch.cat(
        [
            theirs.model(inputs_embeds=other[:, start:end], use_cache=False).last_hidden_state
            for start, end in pairwise(BOUNDARIES)
        ],
        1,
    )
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(alone)
    (together * weight).sum().backward()
    (alone * weight).sum().backward()
    assert (one.grad - other.grad).norm() < 1e-5 * other.grad.norm()


def test_padded_rows_and_generation_are_transformers_own(models):
    ours, theirs = models
    ids = torch.randint(3, 90, (2, 70), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, 50:] = 0
    one, other = (model(input_ids=ids, attention_mask=mask).logits for model in (ours, theirs))
    torch.testing.assert_close(one[0], other[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one[1, :50], other[1, :50], rtol=1e-4, atol=1e-5)
    written = [model.generate(input_ids=ids[:1, :20], max_new_tokens=4, do_sample=False) for model in (ours, theirs)]
    assert torch.equal(*written)


class Syncs(TorchDispatchMode):
    """Collects operations that would wait for a GPU."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        self.found += [name] if name in SYNCS else []
        return operation(*args, **(kwargs or {}))


def test_packed_forward_and_backward_never_wait_for_the_device(models, monkeypatch):
    """Attention itself is left out: its path for a CPU reads the boundaries, the kernel on a GPU does not."""
    ours = models[0]
    ours.set_attn_implementation(DOCUMENTS)
    monkeypatch.setattr(
        "worker.training.model.attention._each_document", lambda q, k, v, *_: v.repeat_interleave(2, 1).transpose(1, 2)
    )
    hidden = torch.randn(1, 110, 64).requires_grad_()
    with Syncs() as seen:
        packed(ours, hidden, BOUNDARIES).sum().backward()
    assert seen.found == []


@pytest.mark.parametrize("boundaries", [None, [0, 9], [0, 1, 2, 6, 9]])
def test_convolution_is_torchs_in_each_document(boundaries):
    x, other = (torch.randn(1, 9, 5, generator=torch.Generator().manual_seed(3)).requires_grad_() for _ in range(2))
    weight = torch.randn(5, 4)
    edges = boundaries or [0, 9]
    ours = convolved(x, weight, None if boundaries is None else torch.tensor(boundaries, dtype=torch.int32))
    parts = [other[:, start:end].mT for start, end in pairwise(edges)]
    expected = torch.cat(
        [
            torch.nn.functional.conv1d(part, weight[:, None], padding=3, groups=5)[..., : part.shape[-1]].mT
            for part in parts
        ],
        1,
    )
    torch.testing.assert_close(ours, torch.nn.functional.silu(expected))
    ours.sum().backward()
    torch.nn.functional.silu(expected).sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


def test_flash_linear_attention_computes_it_on_a_gpu_that_has_it(monkeypatch):
    passed = {}

    def kernel(query, key, value, *, g, beta, use_qk_l2norm_in_kernel, cu_seqlens):
        passed.update(normalised=use_qk_l2norm_in_kernel, boundaries=cu_seqlens)
        return value, None

    tried = []
    monkeypatch.setattr(linear_attention, "flash_kernel", lambda *where: tried.append(where) or kernel)

    class OnGpu(torch.Tensor):
        is_cuda = True

    query = torch.randn(1, 5, 2, 4).as_subclass(OnGpu)
    value, rate = torch.randn(1, 5, 2, 6), torch.rand(1, 5, 2)
    edges = torch.tensor([0, 2, 5], dtype=torch.int32)
    assert scan(query, query, value, -rate, rate, edges) is value
    assert passed == {"normalised": True, "boundaries": edges}
    assert tried == [(query.device, 4, 6)]
    assert scan(query.as_subclass(torch.Tensor), value[..., :4], value, -rate, rate, edges) is not value


def test_where_triton_computes_it_torch_does_not(monkeypatch):
    """One tensor of queries, keys and values goes in, and both kernels get the starts of the documents."""
    sizes, passed = HeadSizes(1, 4, 2, 6), {}

    def convolution(x, weight, first):
        passed.update(starts=first.tolist())
        return x

    def rule(mixed, decay, beta, first, sizes):
        passed.update(mixed=mixed, starts_again=first.tolist())
        return sizes.split(mixed)[2]

    monkeypatch.setattr(linear_attention.choice, "runs_delta_rule", lambda x, asked: asked == sizes)
    monkeypatch.setattr(linear_attention, "Convolved", SimpleNamespace(apply=convolution))
    monkeypatch.setattr(linear_attention, "DeltaRule", SimpleNamespace(apply=rule))
    monkeypatch.setattr(linear_attention, "flash_kernel", None)
    x, edges = torch.randn(1, 5, 20), torch.tensor([0, 2, 5], dtype=torch.int32)
    heads = torch.rand(1, 5, 2)
    output = attend(x, torch.ones(20, 4), -heads, heads, edges, sizes)
    assert torch.equal(output, x[..., 8:].view(1, 5, 2, 6))
    assert passed == {"starts": [0, 0, 2, 2, 2], "mixed": x, "starts_again": [0, 0, 2, 2, 2]}


@pytest.mark.parametrize(("boundaries", "starts"), [(None, None), ([0, 5], None), ([0, 1, 4, 5], [0, 1, 1, 1, 4])])
def test_each_position_has_the_start_of_its_document(boundaries, starts):
    edges = None if boundaries is None else torch.tensor(boundaries, dtype=torch.int32)
    found = document_starts(edges, 5)
    assert (None if found is None else found.tolist()) == starts

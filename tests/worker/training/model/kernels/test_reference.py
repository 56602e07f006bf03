"""The torch references of the kernels equal transformers' modules bit for bit."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_5 import modeling_qwen3_5

from worker.training.model.kernels import reference

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("cls", "centred"),
    [
        (modeling_llama.LlamaRMSNorm, False),
        (modeling_qwen3.Qwen3RMSNorm, False),
        (modeling_qwen3_5.Qwen3_5RMSNorm, True),
    ],
)
def test_norm(cls, centred, dtype):
    x = torch.randn(3, 17).to(dtype)
    norm = cls(17, eps=1e-5).to(dtype).requires_grad_(False)
    norm.weight.normal_()
    assert torch.equal(reference.rms_norm(x, norm.weight, 1e-5, centred=centred), norm(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "turned"), [(modeling_llama, 12), (modeling_qwen3_5, 4)])
def test_rotation(family, turned, dtype):
    query, key = (torch.randn(2, heads, 5, 12).to(dtype) for heads in (4, 2))
    cos, sin = (torch.randn(2, 5, turned).to(dtype) for _ in range(2))
    expected = family.apply_rotary_pos_emb(query, key, cos, sin)
    assert all(
        torch.equal(reference.rotate(one, cos, sin), other) for one, other in zip((query, key), expected, strict=True)
    )

"""Every kernel compiled for GPUs by Triton and NVIDIA's assembler, which need no GPU; nothing is run. `test_functions.py`
runs these tests in a separate process, because Triton's interpreter must not be selected.
"""

from __future__ import annotations

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from worker.training.model.delta_rule import document_starts
from worker.training.model.kernels.delta_rule.functions import DeltaRule, HeadSizes
from worker.training.model.kernels.functions import Convolved, Gated, NormedSum, Rotation

SHARED_MEMORY = 99 * 1024
"""Bytes that a program may have on every supported GPU (compute capability 8.6 and 8.9 have the least)."""
NAMES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32"}
SIZES = [HeadSizes(1, 128, 2, 128), HeadSizes(2, 64, 2, 64)]


@pytest.fixture
def launches(monkeypatch):
    """Kernels with the arguments with which they are launched, instead of the launches."""
    seen = []

    def launch(self, *arguments, grid, warmup, **named):
        seen.append((self, arguments, named))

    monkeypatch.setattr(JITFunction, "run", launch)
    return seen


def leaf(*shape, dtype=torch.bfloat16):
    return torch.randn(shape).to(dtype).requires_grad_()


def norms_and_gates():
    x, delta, weight = leaf(48, 256), leaf(48, 256), leaf(256)
    query, key = leaf(1, 4, 48, 128), leaf(1, 2, 48, 128)
    cos, sin = (torch.ones(1, 48, 64, dtype=torch.bfloat16) for _ in range(2))
    for outputs in (
        NormedSum.apply(x, delta, weight, 1e-6, True),
        NormedSum.apply(x, None, weight, 1e-6, False),
        Rotation.apply(query, key, cos, sin),
        (Gated.apply(x, delta),),
    ):
        sum(one.float().sum() for one in outputs).backward()


def linear_attention(sizes, boundaries):
    columns = 2 * sizes.key_heads * sizes.key_size + sizes.value_heads * sizes.value_size
    edges = None if boundaries is None else torch.tensor(boundaries, dtype=torch.int32)
    first, weight = document_starts(edges, 160), torch.ones(columns, 4, dtype=torch.bfloat16)
    heads = (1, 160, sizes.value_heads)
    mixed = Convolved.apply(leaf(1, 160, columns), weight, first)
    DeltaRule.apply(mixed, leaf(*heads, dtype=torch.float32), leaf(*heads), first, sizes).float().sum().backward()


def compiled(kernel, arguments, named, capability):
    values = dict(zip(kernel.arg_names, arguments, strict=False)) | named
    options = {name: values.pop(name) for name in ("num_warps", "num_stages") if name in values}
    fixed = {one.name for one in kernel.params if one.is_constexpr}
    # What Triton itself takes as a constant: no tensor, and the number one.
    fixed |= {name for name, value in values.items() if value is None or (type(value) is int and value == 1)}
    types, aligned = {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = values[name]
        if name in fixed:
            types[name] = "constexpr"
        elif isinstance(value, torch.Tensor):
            types[name], aligned[place,] = NAMES[value.dtype], [["tt.divisibility", 16]]
        else:
            types[name] = "fp32" if isinstance(value, float) else "i32"
            if type(value) is int and value % 16 == 0:
                aligned[place,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=types, constexprs={name: values[name] for name in fixed}, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("run", "kernels"),
    [
        (norms_and_gates, 5),
        (lambda: linear_attention(SIZES[0], [0, 50, 160]), 11),
        (lambda: linear_attention(SIZES[1], None), 11),
    ],
    ids=["norms and gates", "linear attention, heads of 128", "linear attention, heads of 64"],
)
def test_kernels_compile_and_fit(launches, run, kernels, capability):
    run()
    assert len({kernel for kernel, *_ in launches}) == kernels
    for kernel, *others in launches:
        binary = compiled(kernel, *others, capability)
        assert binary.asm["cubin"]
        assert binary.metadata.shared <= SHARED_MEMORY, kernel.__name__

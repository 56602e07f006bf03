"""The kernels of linear attention compared with torch's functions: on a GPU, or in Triton's interpreter, which has to be
selected before Triton is imported. So `test_functions.py` runs these tests in a separate process.
"""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.triton_interpreter import bfloat16_as_on_a_gpu
from worker.training.model.convolution import convolved
from worker.training.model.delta_rule import document_starts, gated_delta_rule
from worker.training.model.kernels import choice
from worker.training.model.kernels.delta_rule.functions import DeltaRule, HeadSizes
from worker.training.model.kernels.functions import Convolved

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 6e-3}
"""Largest distance from torch's results in fp32 for the same inputs, relative to their norm."""
WIDE, NARROW, TINY = HeadSizes(1, 128, 2, 128), HeadSizes(1, 64, 2, 64), HeadSizes(2, 8, 4, 16)
SHAPES = [
    ("one token", 1, 1, None, NARROW),
    ("rows shorter than a chunk", 3, 23, None, TINY),
    ("whole chunks", 1, 128, None, NARROW),
    ("a last chunk of one token", 2, 65, None, NARROW),
    ("wide heads", 1, 150, None, WIDE),
    ("one document in its boundaries", 1, 70, [0, 70], TINY),
    ("documents of every length", 1, 200, [0, 1, 70, 128, 131, 200], NARROW),
    ("boundaries between chunks", 1, 150, [0, 64, 128, 150], WIDE),
    ("many documents in a chunk", 1, 141, [*range(0, 141, 7), 141], TINY),
    ("as many heads of keys as of values", 1, 90, [0, 40, 90], HeadSizes(3, 64, 3, 128)),
    ("four heads of values to one of keys", 1, 90, [0, 40, 90], HeadSizes(1, 64, 4, 16)),
    ("sizes other than powers of two", 1, 90, [0, 65, 90], HeadSizes(1, 96, 2, 40)),
]


@pytest.fixture(autouse=True, scope="module")
def rounding():
    with bfloat16_as_on_a_gpu() if INTERPRETED else nullcontext():
        yield


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def edges_of(boundaries):
    return None if boundaries is None else torch.tensor(boundaries, dtype=torch.int32, device=DEVICE)


def inputs(rows, tokens, sizes, dtype, strength=0.5):
    columns = 2 * sizes.key_heads * sizes.key_size + sizes.value_heads * sizes.value_size
    heads = rows, tokens, sizes.value_heads
    decay = -strength * torch.nn.functional.softplus(random(*heads, seed=2))
    return random(rows, tokens, columns, dtype=dtype, seed=1), decay, random(*heads, dtype=dtype, seed=3).sigmoid()


def by_kernels(boundaries, sizes):
    def compute(mixed, decay, beta):
        return DeltaRule.apply(mixed, decay, beta, document_starts(edges_of(boundaries), mixed.shape[1]), sizes)

    return compute


def by_torch(boundaries, sizes):
    def compute(mixed, decay, beta):
        query, key, value = sizes.split(mixed)
        query, key = (one.repeat_interleave(sizes.value_heads // sizes.key_heads, 2) for one in (query, key))
        return gated_delta_rule(query, key, value, decay, beta, edges_of(boundaries))

    return compute


def results(compute, leaves):
    """The output and all gradients, for the same gradient of the output whatever the dtype."""
    leaves = [one.detach().requires_grad_() for one in leaves]
    output = compute(*leaves)
    seed = random(*output.shape, dtype=torch.bfloat16, seed=9).to(output.dtype)
    return output, *torch.autograd.grad(output, leaves, seed)


def distances(ours, exact, sizes):
    """Relative distances; queries, keys and values have gradients of different sizes."""
    ours, exact = ([one, *sizes.split(mixed), *others] for one, mixed, *others in (ours, exact))
    # Where nearly all cancels out, what is left is rounding errors.
    return [
        ((one.double() - other.double()).norm() / max(other.norm().item(), 1e-3 * other.numel() ** 0.5)).item()
        for one, other in zip(ours, exact, strict=True)
    ]


def assert_alike(compute, reference, leaves, sizes):
    dtype = leaves[0].dtype
    ours, exact = results(compute, leaves), results(reference, [one.float() for one in leaves])
    assert [one.dtype for one in ours] == [dtype, dtype, torch.float32, dtype]
    assert [one.shape for one in ours] == [one.shape for one in exact]
    found = distances(ours, exact, sizes)
    # A token's own decay changes nothing in it; and a bf16 number alone may be wrong by half of its last bit.
    limit = TOLERANCE[dtype] if ours[0].shape[1] > 1 else 2 * TOLERANCE[dtype]
    assert max(found) <= limit, found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "tokens", "boundaries", "sizes"), [one[1:] for one in SHAPES], ids=[one[0] for one in SHAPES]
)
def test_rule_has_torchs_values_and_gradients(rows, tokens, boundaries, sizes, dtype):
    leaves = inputs(rows, tokens, sizes, dtype)
    assert_alike(by_kernels(boundaries, sizes), by_torch(boundaries, sizes), leaves, sizes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_documents_see_nothing_of_each_other(dtype):
    """Each document's results are those of the document alone, however strong the decays before it are."""
    mixed, decay, beta = inputs(1, 100, NARROW, dtype)
    decay = torch.cat([torch.full_like(decay[:, :40], -50.0), decay[:, 40:]], 1)
    together = results(by_kernels([0, 40, 100], NARROW), [mixed, decay, beta])
    alone = [one[:, 40:] for one in (mixed, decay, beta)]
    output = by_kernels(None, NARROW)(*alone)
    assert distances([together[0][:, 40:], alone[0]], [output, alone[0]], NARROW)[0] <= TOLERANCE[dtype]
    changed = mixed.clone()
    changed[:, :40] = 0
    assert torch.equal(by_kernels([0, 40, 100], NARROW)(changed, decay, beta)[:, 40:], together[0][:, 40:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_that_are_all_alike_lose_few_digits(dtype):
    """The system's powers would overflow if its inverse were a sum of them."""
    mixed, decay, beta = inputs(1, 64, NARROW, dtype, strength=1e-3)
    keys = NARROW.key_heads * NARROW.key_size
    mixed[..., keys : 2 * keys] = 1 + 0.01 * mixed[..., keys : 2 * keys]
    leaves = mixed, decay, torch.ones_like(beta)
    exact = by_torch(None, NARROW)(*(one.float() for one in leaves))
    ours = by_kernels(None, NARROW)(*leaves)
    assert (ours.double() - exact.double()).norm() <= 4 * TOLERANCE[dtype] * exact.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("boundaries", [None, [0, 37], [0, 1, 3, 4, 20, 37]], ids=str)
@pytest.mark.parametrize(("channels", "size"), [(70, 4), (64, 2), (3, 4)])
def test_convolution_has_torchs_values_and_gradients(channels, size, boundaries, dtype):
    rows = 2 if boundaries is None else 1
    x, weight = random(rows, 37, channels, dtype=dtype, seed=1), random(channels, size, dtype=dtype, seed=2)
    edges = edges_of(boundaries)
    ours = results(lambda x: Convolved.apply(x, weight, document_starts(edges, 37)), [x])
    exact = results(lambda x: convolved(x, weight.float(), edges), [x.float()])
    for one, other in zip(ours, exact, strict=True):
        assert one.dtype == dtype
        assert (one.double() - other.double()).norm() <= TOLERANCE[dtype] * other.norm()


def test_convolution_of_a_part_of_a_tensor_is_that_of_its_copy():
    x, weight = random(2, 9, 12, dtype=torch.bfloat16)[..., 2:8], random(6, 4, dtype=torch.bfloat16, seed=1)
    compute = lambda x: Convolved.apply(x, weight, None)  # noqa: E731
    for one, other in zip(results(compute, [x]), results(compute, [x.clone()]), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, choice.TOLERANCE / 2)])
def test_the_same_probe_as_before_training(dtype, limit):
    assert choice.delta_distance(DEVICE, dtype, NARROW) < limit


class Described(TorchDispatchMode):
    """Shapes, strides and dtypes of the outputs of each of the kernels' operators, and what it has stored in arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output = operation(*args, **(kwargs or {}))
        if operation.namespace == "mens":
            outputs = output if isinstance(output, tuple) else (output,)
            described = [(one.shape, one.stride(), one.dtype) for one in outputs if one is not None]
            self.calls.append((operation.overloadpacket.__name__, described))
        return output


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_are_known_without_memory(dtype):
    """Compare every operator's outputs on meta tensors, with which plans and benches count, with the real ones."""
    sizes, edges = HeadSizes(1, 96, 2, 40), edges_of([0, 20, 70])
    weight = random(2 * 96 + 2 * 40, 4, dtype=dtype)

    def calls(device):
        first = document_starts(edges, 70).to(device)
        leaves = [one.to(device).requires_grad_() for one in inputs(1, 70, sizes, dtype)]
        with Described() as seen:
            mixed = Convolved.apply(leaves[0], weight.to(device), first)
            DeltaRule.apply(mixed, *leaves[1:], first, sizes).sum().backward()
        return seen.calls

    real = calls(DEVICE)
    assert [name for name, _ in real] == [
        "convolved",
        "delta_inverse",
        "delta_solved",
        "delta_states",
        "delta_outputs",
        "delta_direct_gradient",
        "delta_state_gradients",
        "delta_output_gradients",
        "delta_head_gradient",
        "delta_system_gradients",
        "delta_head_gradient",
        "convolved_gradient",
    ]
    assert calls("meta") == real

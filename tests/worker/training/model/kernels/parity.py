"""Every kernel compared with torch: on a GPU, or in Triton's interpreter, which has to be selected before Triton is
imported. So `test_functions.py` runs these tests in a separate process.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_5 import modeling_qwen3_5

from shared.contract.sections import AdapterSection
from shared.preflight.activations import Recompute
from tests.support.tiny_models import RAW
from tests.support.triton_interpreter import bfloat16_as_on_a_gpu
from worker.training.model.attention import DOCUMENTS
from worker.training.model.kernels import choice, operators
from worker.training.model.kernels.blocks import Norm, use_kernels
from worker.training.model.kernels.functions import Gated, NormedSum, Rotation
from worker.training.model.linear_attention import use_own_scan
from worker.training.model.load import attach_lora, trainable
from worker.training.model.lora_fusion import fuse_lora
from worker.training.model.recompute import set_recompute

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3}
EVERY_KERNEL = {"norm", "norm_gradient", "turn", "gated", "gated_gradients"}
LINEAR_ATTENTION = {
    *("convolved", "delta_inverse", "delta_solved", "delta_states", "delta_outputs"),
    *("convolved_gradient", "delta_direct_gradient", "delta_state_gradients", "delta_output_gradients"),
    *("delta_system_gradients", "delta_head_gradient"),
}


@pytest.fixture(autouse=True, scope="module")
def rounding():
    with bfloat16_as_on_a_gpu() if INTERPRETED else nullcontext():
        yield


def random(*shape, dtype, seed=0):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(DEVICE, dtype)


def assert_alike(ours, theirs, exact=None):
    """As near as the dtype rounds; and no farther from what fp64 computes than torch is, if that is given."""
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    one, other = ours.double(), theirs.double()
    # Where nearly all cancels out, what is left is rounding errors of elements about one.
    size = max(other.norm().item(), other.numel() ** 0.5)
    assert (one - other).norm() <= TOLERANCE[ours.dtype] * size
    if exact is not None and other.numel() > 50:
        assert (one - exact).norm() <= 1.05 * (other - exact).norm() + 1e-7 * size


def compare(function, reference, inputs, laid_out=lambda x: x):
    """Values and gradients of both; inputs are leaves, which both see as ``laid_out`` arranges them."""

    def run(compute, dtype):
        leaves = [one.detach().to(dtype).requires_grad_() for one in inputs]
        outputs = compute(*(laid_out(one) if one.dim() > 1 else one for one in leaves))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        seeds = [random(*one.shape, dtype=torch.float64, seed=9).to(one.dtype) for one in outputs]
        return *outputs, *torch.autograd.grad(outputs, leaves, seeds)

    dtype = inputs[0].dtype
    results = run(function, dtype), run(reference, dtype), run(reference, torch.float64)
    for ours, theirs, exact in zip(*results, strict=True):
        assert_alike(ours, theirs, exact)


LAYOUTS = {
    "plain": lambda x: x,
    "strided rows": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
}


SHAPES = [(1, 1), (3, 7), (2, 5, 96), (1, 70, 3, 33), (2, 4500)]
LAID_OUT = [
    *((shape, "plain") for shape in SHAPES),
    *((shape, one) for shape in SHAPES[2:4] for one in LAYOUTS if one != "plain"),
]
"""Each shape, and each other layout of short rows and of heads: strides are passed on alike whatever a row's length."""


def norm_of(cls, size, dtype):
    norm = cls(size).to(DEVICE, dtype)
    return norm.requires_grad_(False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "layout"), LAID_OUT)
@pytest.mark.parametrize("centred", [False, True])
def test_norm_and_sum(shape, centred, layout, dtype):
    """Compare with a trained weight and with a frozen one; the sum is passed on with its norm, as in a block."""
    cls = modeling_qwen3_5.Qwen3_5RMSNorm if centred else modeling_qwen3.Qwen3RMSNorm
    x, delta = (random(*shape, dtype=dtype, seed=seed) for seed in (1, 2))
    weight = random(shape[-1], dtype=dtype, seed=3)

    def theirs(x, delta, weight):
        norm = norm_of(cls, shape[-1], torch.float32)
        total = x + delta
        if x.dtype == torch.float64:  # the module computes in fp32
            scaled = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
            return total, scaled * (1 + weight if centred else weight)
        del norm.weight
        norm.weight = weight
        return total, norm(total)

    def ours(x, delta, weight):
        return NormedSum.apply(x, delta, weight, 1e-6, centred)

    compare(ours, theirs, (x, delta, weight), LAYOUTS[layout])
    compare(
        lambda x, delta: ours(x, delta, weight),
        lambda x, delta: theirs(x, delta, weight.to(x.dtype)),
        (x, delta),
        LAYOUTS[layout],
    )
    compare(
        lambda x, weight: NormedSum.apply(x, None, weight, 1e-6, centred)[1],
        lambda x, weight: theirs(x, torch.zeros_like(x), weight)[1],
        (x, weight),
        LAYOUTS[layout],
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("size", "turned", "heads", "kv_heads", "rows"),
    [(6, 6, 4, 2, 2), (32, 32, 4, 2, 2), (34, 10, 4, 2, 2), (24, 8, 4, 2, 2), (6, 6, 3, 1, 1), (34, 10, 3, 1, 1)],
)
@pytest.mark.parametrize("heads_last", [True, False], ids=["as projected", "contiguous"])
def test_rotation(size, turned, heads, kv_heads, rows, heads_last, dtype):
    """Rotate whole heads and a part of each, as Qwen3.5 does, also with one row of angles for all rows."""
    query = random(rows, heads, 5, size, dtype=dtype, seed=1)
    key = random(rows, kv_heads, 5, size, dtype=dtype, seed=2)
    family = modeling_llama if size == turned else modeling_qwen3_5
    for angle_rows in {1, rows}:
        cos, sin = (random(angle_rows, 5, turned, dtype=dtype, seed=seed) for seed in (3, 4))
        compare(
            lambda q, k, cos=cos, sin=sin: Rotation.apply(q, k, cos, sin),
            lambda q, k, cos=cos, sin=sin: ORIGINAL[family](q, k, cos.to(q.dtype), sin.to(q.dtype)),
            (query, key),
            (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)) if heads_last else lambda x: x,
        )


ORIGINAL = {family: family.apply_rotary_pos_emb for family in (modeling_llama, modeling_qwen3_5)}


def test_rotation_rounds_as_torch_does():
    """In the interpreter every bit; a GPU may contract products and sums."""
    query, key = (random(1, heads, 9, 16, dtype=torch.bfloat16, seed=heads) for heads in (3, 1))
    cos, sin = (random(1, 9, 16, dtype=torch.bfloat16, seed=seed) for seed in (3, 4))
    for ours, theirs in zip(
        operators.turn(query, key, cos, sin, back=False), ORIGINAL[modeling_llama](query, key, cos, sin), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0 if INTERPRETED else 2**-7, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 3, 701)])
def test_swiglu(shape, layout, dtype):
    gate, up = (4 * random(*shape, dtype=dtype, seed=seed) for seed in (1, 2))
    compare(Gated.apply, lambda gate, up: torch.nn.functional.silu(gate) * up, (gate, up), LAYOUTS[layout])


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, in the interpreter; a GPU says nothing
def test_swiglu_far_from_zero():
    gate = torch.tensor([[-200.0, -90.0, -0.0, 0.0, 90.0, 200.0]], device=DEVICE)
    compare(Gated.apply, lambda gate, up: torch.nn.functional.silu(gate) * up, (gate, torch.ones_like(gate)))


def test_shapes_are_known_without_memory():
    """Compare each operator's outputs on meta tensors, with which plans and benches count, with the real ones."""
    x, delta, weight = (
        random(2, 3, 8, dtype=torch.bfloat16),
        random(2, 3, 8, dtype=torch.bfloat16),
        random(8, dtype=torch.bfloat16),
    )
    scale = torch.ones(6, device=DEVICE)
    heads, angles = (random(1, 3, *sizes, dtype=torch.bfloat16) for sizes in [(2, 8), (8,)])
    heads = heads.transpose(1, 2)
    calls = [
        (torch.ops.mens.norm, (x, None, weight, 1e-6, True)),
        (torch.ops.mens.norm, (x, delta, weight, 1e-6, False)),
        (torch.ops.mens.norm_gradient, (delta, None, x, weight, scale, True, False)),
        (torch.ops.mens.norm_gradient, (delta, x, x, weight, scale, False, True)),
        (torch.ops.mens.turn, (heads, heads, angles, angles, False)),
        (torch.ops.mens.gated, (x, delta)),
        (torch.ops.mens.gated_gradients, (delta, x, x)),
    ]
    for operator, arguments in calls:
        without = [one.to("meta") if isinstance(one, torch.Tensor) else one for one in arguments]
        assert described(operator(*without)) == described(operator(*arguments)), operator


def described(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [(one.shape, one.stride(), one.dtype) for one in outputs]


def test_the_same_probe_as_before_training():
    assert choice.largest_distance(DEVICE, torch.float32) < 1e-5
    assert choice.largest_distance(DEVICE, torch.bfloat16) < choice.TOLERANCE


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_of_another_dtype_stays_torchs(dtype, monkeypatch):
    monkeypatch.setattr(choice, "runs_kernels", lambda x: True)
    norm = norm_of(modeling_llama.LlamaRMSNorm, 8, torch.float32)
    x = random(2, 8, dtype=dtype)
    with Operators() as seen:
        Norm(norm).forward(x)
    assert seen.names == ({"norm"} if dtype == torch.float32 else set())


class Operators(TorchDispatchMode):
    """Names of the kernels that have run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.namespace == "mens":
            self.names.add(operation.overloadpacket.__name__)
        return operation(*args, **(kwargs or {}))


@pytest.fixture
def learn(monkeypatch):
    """Loss and gradients of the adapter of a tiny model, by the trainer's functions with kernels or without."""

    def run(family, dtype, *, kernels, recompute=Recompute.NONE, targets=()):
        monkeypatch.setattr(choice, "runs_kernels", lambda x: kernels)
        monkeypatch.setattr(choice, "runs_delta_rule", lambda x, sizes: kernels)
        torch.manual_seed(3)
        raw = RAW[family] | {"num_hidden_layers": 2 if "qwen3" in family else 1, "initializer_range": 0.1}
        if "3_5" in family:
            raw |= {"layer_types": ["linear_attention", "full_attention"]}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw), dtype=dtype).to(DEVICE)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                torch.nn.init.normal_(parameter, mean=0.0 if "3_5" in family else 1.0, std=0.2)
        use_own_scan(model)
        use_kernels(model)
        model.set_attn_implementation(DOCUMENTS)
        section = AdapterSection(rank=4, alpha=8, dropout=0, target_modules=targets or None)
        tuned = attach_lora(model.requires_grad_(False), section, seed=3).train()
        for parameter in trainable(tuned):
            torch.nn.init.normal_(parameter, std=0.1)
        fuse_lora(tuned, cache_dequantised=False)
        set_recompute(tuned, recompute)
        lengths = [4, 1, 6]
        ids = (torch.arange(sum(lengths), device=DEVICE) * 7 % 89 + 3)[None]
        edges = torch.tensor([0, 4, 5, 11], dtype=torch.int32, device=DEVICE)
        positions = torch.cat([torch.arange(end - start) for start, end in pairwise(edges.tolist())])[None].to(DEVICE)
        with Operators() as seen:
            loss = tuned(
                input_ids=ids,
                position_ids=positions,
                labels=ids,
                use_cache=False,
                cu_seq_lens_q=edges,
                cu_seq_lens_k=edges,
                max_length_q=max(lengths),
                max_length_k=max(lengths),
            ).loss
            loss.backward()
        expected = EVERY_KERNEL | (LINEAR_ATTENTION if "3_5" in family else set())
        assert seen.names == (expected if kernels else set())
        return loss.double(), [parameter.grad.double() for parameter in trainable(tuned)]

    return run


def distance(ours, theirs):
    return (sum((a - b).square().sum() for a, b in zip(ours, theirs, strict=True)) ** 0.5).item()


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "qwen3_5_text"])
def test_a_model_learns_what_it_learns_without_kernels(learn, family):
    assert_learns_alike(learn, family)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_text"])
def test_recomputed_blocks_learn_the_same(learn, family):
    assert_learns_alike(learn, family, recompute=Recompute.BLOCKS)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_text"])
def test_recomputed_norms_and_mlps_change_no_bit(learn, family):
    kept, again = (
        learn(family, torch.bfloat16, kernels=True, recompute=one) for one in (Recompute.NONE, Recompute.MLPS)
    )
    assert torch.equal(kept[0], again[0])
    assert all(torch.equal(one, other) for one, other in zip(kept[1], again[1], strict=True))


def test_an_mlp_without_an_adapter_passes_the_same_gradients_on(learn):
    assert_learns_alike(learn, "qwen3", targets=("q_proj", "o_proj"))


def assert_learns_alike(learn, family, **options):
    loss, gradients = learn(family, torch.float32, kernels=True, **options)
    expected, theirs = learn(family, torch.float32, kernels=False, **options)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert distance(gradients, theirs) <= 3e-5 * distance(theirs, [0.0] * len(theirs))


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_text"])
def test_in_bf16_a_model_is_as_near_to_fp32_as_without_kernels(learn, family):
    exact_loss, exact = learn(family, torch.float32, kernels=False)
    (loss, ours), (other, theirs) = (learn(family, torch.bfloat16, kernels=kernels) for kernels in (True, False))
    assert loss.item() == pytest.approx(exact_loss.item(), rel=1e-2)
    assert abs(loss - other) < 1e-2 * exact_loss
    assert distance(ours, exact) < 1.1 * distance(theirs, exact)

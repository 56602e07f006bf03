"""The fused functions compared with their formulas, by autograd and by finite differences."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import linear, silu

from worker.training.model.fused_functions import SharedInput, SwiGlu


@dataclass(frozen=True)
class Plain:
    """A frozen layer of plain tensors."""

    matrix: Tensor
    bias: Tensor | None

    def weight(self) -> Tensor:
        return self.matrix


@dataclass(frozen=True)
class Shape:
    """Sizes of one projection: rank None is a projection without LoRA."""

    width: int
    rank: int | None
    bias: bool = False
    scale: float = 2.0


def make(inside: int, shapes: list[Shape], dtype: torch.dtype = torch.float64):
    """Frozen layers, scales, and pairs A, B of projections from `inside` units."""
    frozen, lora = [], []
    for shape in shapes:
        bias = torch.randn(shape.width, dtype=dtype) if shape.bias else None
        frozen.append(Plain(torch.randn(shape.width, inside, dtype=dtype), bias))
        sizes = ((shape.rank, inside), (shape.width, shape.rank))
        lora += [None if shape.rank is None else torch.randn(size, dtype=dtype, requires_grad=True) for size in sizes]
    return frozen, [shape.scale for shape in shapes], lora


def reference(x: Tensor, layer: Plain, scale: float, down: Tensor | None, up: Tensor | None) -> Tensor:
    y = linear(x, layer.matrix, layer.bias)
    return y if down is None else y + scale * linear(linear(x, down), up)


def shared_reference(x, frozen, scales, *lora) -> list[Tensor]:
    return [reference(x, *one) for one in zip(frozen, scales, lora[::2], lora[1::2], strict=True)]


def swiglu_reference(x, frozen, scales, *lora) -> Tensor:
    gate, up = shared_reference(x, frozen[:2], scales[:2], *lora[:4])
    return reference(silu(gate) * up, frozen[2], scales[2], *lora[4:])


def gradients(outputs: list[Tensor], wanted: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a sum of the outputs in which every element has a different weight."""
    total = sum((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in outputs)
    return list(torch.autograd.grad(total, wanted))


def assert_alike(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


batch_shapes = st.lists(st.integers(1, 4), max_size=2)
widths = st.integers(1, 6)
shapes = st.builds(
    Shape, widths, st.none() | st.integers(1, 4), st.booleans(), st.sampled_from([0.0, 0.5, 1.0, 2.0, -3.0])
)


@given(batch_shapes, widths, st.lists(shapes, min_size=1, max_size=4), st.integers(0, 9), st.data())
def test_projections_of_one_input_are_what_they_are_alone(batch, inside, several, seed, data):
    torch.manual_seed(seed)
    frozen, scales, lora = make(inside, several)
    x = torch.randn(*batch, inside, dtype=torch.float64, requires_grad=True)
    ours, theirs = SharedInput.apply(x, frozen, scales, *lora), shared_reference(x, frozen, scales, *lora)
    assert_alike(ours, theirs)
    used = sorted(data.draw(st.sets(st.integers(0, len(several) - 1), min_size=1)))
    wanted = [x] + [one for place in used for one in lora[2 * place : 2 * place + 2] if one is not None]
    assert_alike(gradients([ours[i] for i in used], wanted), gradients([theirs[i] for i in used], wanted))


def swiglu(x, frozen, scales, *lora, recomputes=False):
    return SwiGlu.apply(x, frozen, scales, recomputes, *lora)


@given(batch_shapes, widths, widths, st.tuples(shapes, shapes, shapes), st.integers(0, 9), st.booleans())
def test_swiglu_is_its_three_projections(batch, inside, inner, three, seed, recomputes):
    torch.manual_seed(seed)
    gate, up, down = three
    wide = [Shape(inner, one.rank, one.bias, one.scale) for one in (gate, up)]
    frozen, scales, lora = (a + b for a, b in zip(make(inside, wide), make(inner, [down]), strict=True))
    x = torch.randn(*batch, inside, dtype=torch.float64, requires_grad=True)
    ours = swiglu(x, frozen, scales, *lora, recomputes=recomputes)
    theirs = swiglu_reference(x, frozen, scales, *lora)
    assert_alike([ours], [theirs])
    wanted = [x] + [one for one in lora if one is not None]
    assert_alike(gradients([ours], wanted), gradients([theirs], wanted))


def test_gradients_of_projections_are_those_of_finite_differences():
    torch.manual_seed(0)
    frozen, scales, lora = make(5, [Shape(4, 2, True), Shape(3, None), Shape(2, 3, scale=0.5)])
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *lora: SharedInput.apply(x, frozen, scales, *lora), (x, *lora))


@pytest.mark.parametrize("recomputes", [False, True])
def test_gradients_of_swiglu_are_those_of_finite_differences(recomputes):
    torch.manual_seed(0)
    wide, narrow = make(5, [Shape(7, 2), Shape(7, 3, True)]), make(7, [Shape(5, 2, scale=0.5)])
    frozen, scales, lora = (a + b for a, b in zip(wide, narrow, strict=True))
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, *lora: swiglu(x, frozen, scales, *lora, recomputes=recomputes), (x, *lora)
    )


def test_tensors_need_not_be_contiguous():
    torch.manual_seed(0)
    wide, narrow = make(5, [Shape(7, 2), Shape(7, 3, True)]), make(7, [Shape(5, 2, scale=0.5)])
    frozen, scales, lora = (a + b for a, b in zip(wide, narrow, strict=True))
    x = torch.randn(5, 3, 2, dtype=torch.float64).transpose(0, 2).requires_grad_()
    pairs = [(swiglu, swiglu_reference), (SharedInput.apply, shared_reference)]
    for (ours, theirs), count in zip(pairs, (3, 2), strict=True):
        arguments = x, frozen[:count], scales[:count], *lora[: 2 * count]
        results = [list(y) if isinstance(y, tuple | list) else [y] for y in (ours(*arguments), theirs(*arguments))]
        assert_alike(*results)
        backwards = [[y.transpose(0, 1) for y in result] for result in results]
        wanted = [x, *lora[: 2 * count]]
        assert_alike(*(gradients(outputs, wanted) for outputs in backwards))


def test_gradients_are_laid_out_like_their_parameters():
    frozen, scales, lora = make(5, [Shape(4, 2), Shape(3, 3)])
    sum(y.sum() for y in SharedInput.apply(torch.randn(6, 5, dtype=torch.float64), frozen, scales, *lora)).backward()
    assert all(one.grad.is_contiguous() for one in lora)


def test_no_tokens_are_not_an_error():
    frozen, scales, lora = make(5, [Shape(4, 2), Shape(3, None)])
    x = torch.zeros(1, 0, 5, dtype=torch.float64, requires_grad=True)
    outputs = SharedInput.apply(x, frozen, scales, *lora)
    assert [tuple(y.shape) for y in outputs] == [(1, 0, 4), (1, 0, 3)]
    assert not any(one.any() for one in gradients(outputs, [x, lora[0], lora[1]]))


def test_input_that_needs_no_gradient_gets_none():
    torch.manual_seed(0)
    frozen, scales, lora = make(5, [Shape(4, 2)])
    x = torch.randn(3, 5, dtype=torch.float64)
    SharedInput.apply(x, frozen, scales, *lora)[0].sum().backward()
    assert x.grad is None
    assert all(one.grad is not None for one in lora)


def test_gradients_of_fp32_parameters_are_not_rounded_to_the_activations_dtype():
    """A sum of 4096 ones is 4096; with another 1 in bf16 it would still be."""
    frozen, scales = [Plain(torch.zeros(1, 1, dtype=torch.bfloat16), None)], [1.0]
    down, up = torch.ones(1, 1, requires_grad=True), torch.ones(1, 1, requires_grad=True)
    x = torch.ones(4097, 1, dtype=torch.bfloat16)
    SharedInput.apply(x, frozen, scales, down, up)[0].sum().backward()
    assert (down.grad.dtype, up.grad.dtype) == (torch.float32, torch.float32)
    assert down.grad.item() == up.grad.item() == 4097


@pytest.mark.parametrize(("recomputes", "wide_outputs"), [(False, 2), (True, 0)])
def test_swiglu_keeps_no_more_than_the_outputs_of_gate_and_up(recomputes, wide_outputs):
    tokens, inside, inner, rank = 50, 8, 32, 2
    wide, narrow = make(inside, [Shape(inner, rank)] * 2), make(inner, [Shape(inside, rank)])
    frozen, scales, lora = (a + b for a, b in zip(wide, narrow, strict=True))
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    x = torch.randn(tokens, inside, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        swiglu(x, frozen, scales, *lora, recomputes=recomputes)
    activations = tokens * (inside + wide_outputs * inner + 3 * rank)
    assert sum(kept.values()) == activations + sum(one.numel() for one in lora)

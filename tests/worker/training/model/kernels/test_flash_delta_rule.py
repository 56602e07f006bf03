"""flash-linear-attention's kernel runs only on a GPU on which it agrees with torch."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

import pytest
import torch

from worker.training.model.delta_rule import gated_delta_rule
from worker.training.model.kernels.flash_delta_rule import flash_kernel, installed_kernel

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def untried():
    flash_kernel.cache_clear()
    installed_kernel.cache_clear()
    yield
    flash_kernel.cache_clear()
    installed_kernel.cache_clear()


def install(monkeypatch, kernel):
    flash = ModuleType("fla.ops.gated_delta_rule")
    flash.chunk_gated_delta_rule = kernel
    for name, module in (("fla", ModuleType("fla")), ("fla.ops", ModuleType("fla.ops")), (flash.__name__, flash)):
        monkeypatch.setitem(sys.modules, name, module)


class RefusedBackward(torch.autograd.Function):
    """A kernel whose backward pass refuses this version of Triton."""

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("Triton >= 3.4.0 and < 3.7.1 on Hopper GPUs produces incorrect results")


def computed_by(change):
    def kernel(query, key, value, *, g, beta, use_qk_l2norm_in_kernel, cu_seqlens):
        assert use_qk_l2norm_in_kernel
        return change(gated_delta_rule(query, key, value, g, beta, cu_seqlens)), None

    return kernel


def one_document(query, key, value, *, g, beta, use_qk_l2norm_in_kernel, cu_seqlens):
    return gated_delta_rule(query, key, value, g, beta, None), None


WRONG = {
    "refused": computed_by(RefusedBackward.apply),
    "other values": computed_by(lambda values: 1.1 * values),
    "other gradients": computed_by(lambda values: values + 0.1 * (values - values.detach())),
    "not a number": computed_by(lambda values: values * float("nan")),
    "one document": one_document,
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_kernel_that_agrees_is_used(monkeypatch, mode):
    kernel = computed_by(lambda values: values)
    install(monkeypatch, kernel)
    with mode():
        assert flash_kernel(CPU, 16, 24) is kernel


@pytest.mark.parametrize("kernel", WRONG.values(), ids=WRONG)
def test_a_kernel_that_fails_or_differs_is_not_used(monkeypatch, caplog, kernel):
    install(monkeypatch, kernel)
    with caplog.at_level(logging.WARNING):
        assert flash_kernel(CPU, 16, 16) is None
        assert flash_kernel(CPU, 16, 16) is None
    assert len(caplog.records) == 1


def test_without_it_torch_computes_and_says_nothing(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "fla", None)
    assert flash_kernel(CPU, 16, 16) is None
    assert not caplog.records

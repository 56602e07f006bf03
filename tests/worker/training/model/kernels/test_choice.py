"""Kernels run only on a GPU on which they agree with torch."""

from __future__ import annotations

import logging

import pytest
import torch

from worker.training.model.convolution import convolved
from worker.training.model.delta_rule import gated_delta_rule
from worker.training.model.kernels import choice, reference
from worker.training.model.kernels.delta_rule.functions import HeadSizes

SIZES = HeadSizes(16, 128, 32, 64)


@pytest.fixture(autouse=True)
def untried():
    choice.kernels_agree.cache_clear()
    choice.delta_rule_agrees.cache_clear()
    yield
    choice.kernels_agree.cache_clear()
    choice.delta_rule_agrees.cache_clear()


class TensorOnGpu:
    """A tensor's place, without a GPU."""

    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self, dtype=torch.bfloat16):
        self.dtype = dtype


@pytest.mark.parametrize(
    ("distance", "agree"), [(0.004, True), (choice.TOLERANCE, False), (float("nan"), False), (float("inf"), False)]
)
def test_a_gpu_whose_kernels_differ_computes_by_torch(monkeypatch, caplog, distance, agree):
    tried = []
    monkeypatch.setattr(choice, "largest_distance", lambda *where: tried.append(where) or distance)
    with caplog.at_level(logging.WARNING):
        assert [choice.runs_kernels(TensorOnGpu()) for _ in range(3)] == [agree] * 3
    assert tried == [(torch.device("cuda", 0), torch.bfloat16)]
    assert bool(caplog.records) != agree


class Computed:
    """A function in place of a kernel's."""

    def __init__(self, compute):
        self.apply = compute


def stand_ins(gradient_of_gate):
    def gated(gate, up):
        return reference.gated(gate, up) + gradient_of_gate * (gate - gate.detach())

    return {
        "NormedSum": lambda x, delta, weight, eps, centred: (
            x + delta,
            reference.rms_norm(x + delta, weight, eps, centred=centred),
        ),
        "Rotation": lambda q, k, cos, sin: (reference.rotate(q, cos, sin), reference.rotate(k, cos, sin)),
        "Gated": gated,
    }


@pytest.mark.parametrize(("wrong_gradient", "agree"), [(0.0, True), (0.1, False), (float("nan"), False)])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_one_wrong_gradient_is_found_whoever_asks(monkeypatch, mode, wrong_gradient, agree):
    """Also one that is not a number, which no comparison finds larger than another."""
    for name, compute in stand_ins(wrong_gradient).items():
        monkeypatch.setattr(choice, name, Computed(compute))
    with mode():
        assert choice.kernels_agree(torch.device("cpu")) == agree


def test_a_machine_on_which_triton_does_not_compile_computes_by_torch(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(choice, "largest_distance", fail)
    assert not choice.runs_kernels(TensorOnGpu())
    assert "torch is used instead" in caplog.text and "C compiler" in caplog.text


def test_a_cpu_never_tries(monkeypatch):
    monkeypatch.setattr(choice, "kernels_agree", None)
    assert not choice.runs_kernels(torch.ones(2))


@pytest.mark.parametrize(("distance", "agree"), [(0.004, True), (choice.TOLERANCE, False), (float("nan"), False)])
def test_linear_attention_is_tried_for_the_models_heads(monkeypatch, caplog, distance, agree):
    tried = []
    monkeypatch.setattr(choice, "delta_distance", lambda *where: tried.append(where) or distance)
    with caplog.at_level(logging.WARNING):
        assert [choice.runs_delta_rule(TensorOnGpu(), SIZES) for _ in range(3)] == [agree] * 3
    assert tried == [(torch.device("cuda", 0), torch.bfloat16, HeadSizes(1, 128, 2, 64))]
    assert bool(caplog.records) != agree


def test_linear_attention_in_fp32_and_on_a_cpu_stays_torchs(monkeypatch):
    monkeypatch.setattr(choice, "delta_rule_agrees", None)
    assert not choice.runs_delta_rule(TensorOnGpu(torch.float32), SIZES)
    assert not choice.runs_delta_rule(torch.ones(2, dtype=torch.bfloat16), SIZES)


@pytest.mark.parametrize(("wrong_gradient", "agree"), [(0.0, True), (0.1, False), (float("nan"), False)])
@pytest.mark.parametrize("function", ["Convolved", "DeltaRule"])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_one_wrong_gradient_of_linear_attention_is_found(monkeypatch, mode, function, wrong_gradient, agree):
    edges = torch.tensor(choice.DOCUMENTS, dtype=torch.int32)
    wrong = {"Convolved": 0.0, "DeltaRule": 0.0, function: wrong_gradient}

    def convolution(x, weight, first):
        assert first.tolist() == [0] * 37 + [37] * 64
        return convolved(x, weight, edges) + wrong["Convolved"] * (x - x.detach())

    def rule(mixed, decay, beta, first, sizes):
        assert sizes == HeadSizes(1, 128, 2, 64)
        query, key, value = sizes.split(mixed)
        output = gated_delta_rule(query.repeat_interleave(2, 2), key.repeat_interleave(2, 2), value, decay, beta, edges)
        return output + wrong["DeltaRule"] * (value - value.detach())

    monkeypatch.setattr(choice, "Convolved", Computed(convolution))
    monkeypatch.setattr(choice, "DeltaRule", Computed(rule))
    with mode():
        assert choice.delta_rule_agrees(torch.device("cpu"), SIZES) == agree

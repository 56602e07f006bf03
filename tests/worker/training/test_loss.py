"""Loss and gradients: against hand-written references, and the NF4 model's against a dense one of the same weights."""

from __future__ import annotations

import math

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit

from shared.contract import AdapterSection, QuantSection
from shared.labels import IGNORED, Example
from worker.training.batches import Batch, collate
from worker.training.loss import accumulate_gradients, evaluate, token_losses
from worker.training.model import attach_lora, load_quantised, trainable

CPU = torch.device("cpu")
PAD = 0


def example(seed: int, length: int, learnt: int) -> Example:
    ids = torch.randint(300, 2000, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Example(seed, ids, [IGNORED] * (length - learnt) + ids[length - learnt :], 0)


UNEQUAL = [example(1, 12, 9), example(2, 5, 1), example(3, 20, 3), example(4, 8, 7)]


def nf4_model(base):
    """A fresh QLoRA model whose B is not zero, so that every part of the graph carries gradient."""
    model = attach_lora(load_quantised(base, QuantSection(), CPU), AdapterSection(rank=4, alpha=8), seed=0)
    generator = torch.Generator().manual_seed(1)
    for parameter in trainable(model):
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def dense_twin(base):
    """The same model with every NF4 layer replaced by a dense one of the dequantised weights."""
    model = nf4_model(base)
    for name, module in list(model.named_modules()):
        if isinstance(module, Linear4bit):
            weight = dequantize_4bit(module.weight.data, module.weight.quant_state).float()
            dense = torch.nn.Linear(module.in_features, module.out_features, bias=False)
            dense.weight = torch.nn.Parameter(weight.reshape(module.out_features, module.in_features), False)
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, dense)
    return model


@pytest.fixture(scope="module")
def model(tiny_base):
    return nf4_model(tiny_base)


@pytest.fixture(scope="module")
def dense(tiny_base):
    return dense_twin(tiny_base)


def gradients(model, batches: list[Batch]) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    accumulate_gradients(model, batches, CPU)
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.requires_grad}


def assert_same_gradients(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float):
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0, f"{name} has no gradient, so nothing is compared"
        error = (actual[name] - gradient).norm() / gradient.norm()
        assert error < tolerance, f"{name}: relative error {error:.2e}"


def test_loss_is_the_sum_over_learnt_positions(dense):
    batch = collate(UNEQUAL[:2], PAD)
    loss, hits = token_losses(dense.eval(), batch, CPU)
    expected, right = 0.0, 0
    for one in UNEQUAL[:2]:
        logits = dense(input_ids=torch.tensor([one.ids]), use_cache=False).logits[0].detach()
        for position in range(1, len(one.ids)):
            if one.labels[position] != IGNORED:
                row = logits[position - 1]
                expected -= row.log_softmax(-1)[one.ids[position]].item()
                right += int(row.argmax()) == one.ids[position]
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert hits == right


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_accumulation_over_unequal_micro_batches_equals_one_large_batch(model, rows):
    whole = gradients(model, [collate(UNEQUAL, PAD)])
    parts = gradients(model, [collate(UNEQUAL[start : start + rows], PAD) for start in range(0, 4, rows)])
    assert_same_gradients(parts, whole, 1e-5)
    for name, gradient in whole.items():
        assert torch.allclose(parts[name], gradient, atol=1e-6, rtol=1e-5), name


def test_score_of_accumulated_batches_is_that_of_the_large_one(model):
    model.zero_grad()
    whole = accumulate_gradients(model, [collate(UNEQUAL, PAD)], CPU)
    parts = accumulate_gradients(model, [collate([one], PAD) for one in UNEQUAL], CPU)
    assert whole.targets == parts.targets == 9 + 1 + 3 + 7
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert parts.accuracy == whole.accuracy


@pytest.mark.parametrize("rows", [UNEQUAL[:1], [example(5, 2, 1)], UNEQUAL], ids=["one row", "two tokens", "four rows"])
def test_gradients_of_the_nf4_model_are_those_of_its_dense_twin(model, dense, rows):
    batches = [collate(rows, PAD)]
    assert_same_gradients(gradients(model, batches), gradients(dense, batches), 1e-4)


def test_gradients_stay_right_after_a_validation(tiny_base, dense):
    """On some CPUs bitsandbytes repacks the weights in eval mode for a kernel that has no gradient."""
    model = nf4_model(tiny_base)
    batches = [collate(UNEQUAL[:1], PAD)]
    before = gradients(model, batches)
    evaluate(model, UNEQUAL, 2, PAD, CPU)
    after = gradients(model, batches)
    assert_same_gradients(after, gradients(dense, batches), 1e-4)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_every_layer_gets_a_gradient(model):
    found = gradients(model, [collate(UNEQUAL[:1], PAD)])
    layers = {name.partition("layers.")[2].partition(".")[0] for name in found}
    assert layers == {"0", "1", "2", "3"}
    assert len(found) == 4 * 7 * 2
    assert all(gradient.abs().max() > 0 for gradient in found.values())


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_evaluation_does_not_depend_on_the_batch_size(dense, rows):
    score, whole = (evaluate(dense, UNEQUAL, size, PAD, CPU) for size in (rows, 4))
    assert score is not None
    assert whole is not None
    assert score.loss == pytest.approx(whole.loss, rel=1e-5)
    assert score.targets == 20
    assert math.isfinite(score.loss)
    assert 0 <= score.accuracy <= 1


def test_evaluation_sees_what_training_sees(model):
    """Validation loss and training loss of the same rows and weights are one number (there is no dropout here)."""
    model.zero_grad()
    trained = accumulate_gradients(model, [collate(UNEQUAL, PAD)], CPU)
    evaluated = evaluate(model, UNEQUAL, 4, PAD, CPU)
    assert evaluated is not None
    assert evaluated.loss == pytest.approx(trained.loss, rel=1e-6)


def test_evaluation_leaves_no_gradient_and_turns_dropout_off(tiny_base):
    section = AdapterSection(rank=4, alpha=8, dropout=0.5)
    model = attach_lora(load_quantised(tiny_base, QuantSection(), CPU), section, seed=0)
    for parameter in trainable(model):
        parameter.data += 0.1
    scores = [evaluate(model, UNEQUAL, 2, PAD, CPU) for _ in range(2)]
    assert scores[0] == scores[1]
    assert all(parameter.grad is None for parameter in trainable(model))


def test_nothing_to_evaluate_is_no_score(dense):
    assert evaluate(dense, [], 2, PAD, CPU) is None

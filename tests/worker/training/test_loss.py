"""Loss and gradients: compared with hand-written references, and the NF4 model's with those of a dense model with the
same weights.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit
from torch.utils._python_dispatch import TorchDispatchMode

from shared.contract.sections import AdapterSection, QuantSection
from worker.training.data.batches import MicroBatch, collate
from worker.training.data.prepared import Row
from worker.training.loss import accumulate_gradients, mean_score, validation_sums
from worker.training.model.attention import DOCUMENTS
from worker.training.model.load import attach_lora, load_base, trainable
from worker.training.model.lora_fusion import fuse_lora
from worker.training.supervised import SupervisedMethod

CPU = torch.device("cpu")
PAD = 0
METHOD = SupervisedMethod()


def example(seed: int, length: int, learnt: int, weight: float = 1.0) -> Row:
    ids = torch.randint(300, 2000, (length,), generator=torch.Generator().manual_seed(seed)).numpy().astype(np.uint32)
    weights = np.zeros(length, dtype=np.float32)
    weights[length - learnt :] = 1.0
    return Row(seed, ids, weights, 5, weight)


UNEQUAL = [example(1, 12, 9), example(2, 5, 1), example(3, 20, 3), example(4, 8, 7)]


def batch_of(rows: list[Row], *, packed: bool = True) -> MicroBatch:
    return collate(rows, PAD, packed=packed)


def evaluate(*arguments):
    return mean_score(validation_sums(*arguments))


def nf4_model(base, *, fused: bool = True, cached: bool = False):
    """A fresh QLoRA model whose B is not zero, so that every part of the graph carries gradient."""
    model = attach_lora(load_base(base, QuantSection(), CPU), AdapterSection(rank=4, alpha=8), seed=0)
    if fused:
        fuse_lora(model, cache_dequantised=cached)
    generator = torch.Generator().manual_seed(1)
    for parameter in trainable(model):
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def dense_twin(base):
    """The same model with every NF4 layer replaced by a dense one of the dequantised weights, and none of our kernels."""
    model = nf4_model(base, fused=False)
    model.get_base_model().set_attn_implementation("sdpa")
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


def gradients(model, batches: list[MicroBatch]) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    accumulate_gradients(METHOD, model, batches, CPU)
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.requires_grad}


def assert_same_gradients(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float):
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0, f"{name} has no gradient, so nothing is compared"
        error = (actual[name] - gradient).norm() / gradient.norm()
        assert error < tolerance, f"{name}: relative error {error:.2e}"


@pytest.fixture(params=[True, False], ids=["packed", "padded"])
def packed(request) -> bool:
    return request.param


def test_loss_is_the_sum_over_learnt_positions(model, dense, packed):
    rows = [example(1, 12, 9, weight=0.5), example(2, 5, 1)]
    loss, hits, _ = METHOD.loss(model.eval(), batch_of(rows, packed=packed), CPU)
    expected, right = 0.0, 0
    for one in rows:
        logits = dense(input_ids=torch.tensor([one.ids.tolist()]), use_cache=False).logits[0].detach()
        for position in np.flatnonzero(one.weights):
            found = logits[position - 1]
            expected -= one.weight * found.log_softmax(-1)[int(one.ids[position])].item()
            right += int(found.argmax()) == one.ids[position]
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert hits == right


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_accumulation_over_unequal_micro_batches_equals_one_large_batch(model, rows, packed):
    whole = gradients(model, [batch_of(UNEQUAL)])
    parts = [batch_of(UNEQUAL[start : start + rows], packed=packed) for start in range(0, 4, rows)]
    found = gradients(model, parts)
    assert_same_gradients(found, whole, 1e-5)
    for name, gradient in whole.items():
        assert torch.allclose(found[name], gradient, atol=1e-6, rtol=1e-5), name


def test_score_of_accumulated_batches_is_that_of_the_large_one(model):
    model.zero_grad()
    whole = accumulate_gradients(METHOD, model, [batch_of(UNEQUAL)], CPU)
    parts = accumulate_gradients(METHOD, model, [batch_of([one]) for one in UNEQUAL], CPU)
    assert whole.targets == parts.targets == 9 + 1 + 3 + 7
    assert parts.read()[0].loss == pytest.approx(whole.read()[0].loss, rel=1e-6)
    assert parts.correct == whole.correct


def test_a_rows_weight_moves_its_gradient_and_not_the_divisor(model):
    """Row weights boost rows; token weights redistribute the loss within the step."""
    plain = gradients(model, [batch_of([UNEQUAL[0]])])
    boosted = gradients(model, [batch_of([example(1, 12, 9, weight=3.0)])])
    assert_same_gradients({name: one / 3 for name, one in boosted.items()}, plain, 1e-5)
    even = Row(1, UNEQUAL[0].ids, UNEQUAL[0].weights * 3, 5, 1.0)
    assert_same_gradients(gradients(model, [batch_of([even])]), plain, 1e-5)


def test_shares_of_a_step_add_up_to_it(model):
    """Compute as several processes do: each its own micro-batches, all divided by the whole step's weight sum."""
    whole = gradients(model, [batch_of(UNEQUAL)])
    model.zero_grad(set_to_none=True)
    for share in (UNEQUAL[:1], UNEQUAL[1:]):
        accumulate_gradients(METHOD, model, [batch_of(share)], CPU, weight_sum=20.0)
    summed = {name: one.grad for name, one in model.named_parameters() if one.requires_grad}
    assert_same_gradients(summed, whole, 1e-5)


@pytest.mark.parametrize(
    "rows", [UNEQUAL[:1], [example(5, 3, 1)], UNEQUAL], ids=["one row", "three tokens", "four rows"]
)
def test_gradients_of_the_nf4_model_are_those_of_its_dense_twin(model, dense, rows, packed):
    assert_same_gradients(
        gradients(model, [batch_of(rows, packed=packed)]), gradients(dense, [batch_of(rows, packed=False)]), 1e-4
    )


def test_a_cache_of_dequantised_weights_changes_no_bit(tiny_base, model):
    cached = nf4_model(tiny_base, cached=True)
    one, other = (gradients(which, [batch_of(UNEQUAL)]) for which in (cached, model))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_the_model_keeps_documents_apart(model):
    """A row's loss is the same in any company."""
    assert model.config._attn_implementation == DOCUMENTS
    alone = [METHOD.loss(model.eval(), batch_of([one]), CPU)[0].item() for one in UNEQUAL]
    together = METHOD.loss(model, batch_of(UNEQUAL), CPU)[0].item()
    assert together == pytest.approx(sum(alone), rel=1e-5)


def test_gradients_stay_right_after_a_validation(tiny_base, dense):
    """On some CPUs bitsandbytes repacks the weights in eval mode for a kernel that has no gradient."""
    model = nf4_model(tiny_base)
    batches = [batch_of(UNEQUAL[:1])]
    before = gradients(model, batches)
    evaluate(METHOD, model, [batch_of(UNEQUAL)], CPU)
    after = gradients(model, batches)
    assert_same_gradients(after, gradients(dense, [batch_of(UNEQUAL[:1], packed=False)]), 1e-4)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_every_layer_gets_a_gradient(model):
    found = gradients(model, [batch_of(UNEQUAL[:1])])
    layers = {name.partition("layers.")[2].partition(".")[0] for name in found}
    assert layers == {"0", "1", "2", "3"}
    assert len(found) == 4 * 7 * 2
    assert all(gradient.abs().max() > 0 for gradient in found.values())


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_evaluation_does_not_depend_on_the_batch_size(model, rows, packed):
    cut = [batch_of(UNEQUAL[start : start + rows], packed=packed) for start in range(0, 4, rows)]
    score, whole = evaluate(METHOD, model, cut, CPU), evaluate(METHOD, model, [batch_of(UNEQUAL)], CPU)
    assert score is not None
    assert whole is not None
    assert score.loss == pytest.approx(whole.loss, rel=1e-5)
    assert score.targets == 20
    assert math.isfinite(score.loss)
    assert 0 <= score.accuracy <= 1


def test_evaluation_sees_what_training_sees(model):
    """Validation loss and training loss of the same rows and weights are one number (without dropout here)."""
    model.zero_grad()
    trained = accumulate_gradients(METHOD, model, [batch_of(UNEQUAL)], CPU)
    evaluated = evaluate(METHOD, model, [batch_of(UNEQUAL)], CPU)
    assert evaluated is not None
    assert evaluated.loss == pytest.approx(trained.loss.item(), rel=1e-6)


def test_evaluation_leaves_no_gradient_and_turns_dropout_off(tiny_base):
    section = AdapterSection(rank=4, alpha=8, dropout=0.5)
    model = attach_lora(load_base(tiny_base, QuantSection(), CPU), section, seed=0)
    fuse_lora(model, cache_dequantised=False)
    for parameter in trainable(model):
        parameter.data += 0.1
    scores = [evaluate(METHOD, model, [batch_of(UNEQUAL)], CPU) for _ in range(2)]
    assert scores[0] == scores[1]
    assert all(parameter.grad is None for parameter in trainable(model))


def test_nothing_to_evaluate_is_not_a_score(model):
    assert evaluate(METHOD, model, [], CPU) is None


class Reads(TorchDispatchMode):
    """Counts reads of computed values, each of which waits for a GPU; integers are a micro-batch's own, on the CPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default and args[0].is_floating_point()
        return function(*args, **(kwargs or {}))


def test_gradients_of_a_step_read_nothing_from_the_device(model):
    model.zero_grad()
    with Reads() as reads:
        sums = accumulate_gradients(METHOD, model, [batch_of([one]) for one in UNEQUAL], CPU)
    assert reads.count == 0
    score, (norm,) = sums.read(torch.tensor(2.0))
    assert (score.targets, norm) == (20, 2.0)
    assert score.loss == sums.loss.item()

"""Fused LoRA layers compute what peft computes, and leave the PEFT model as it was."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import AutoConfig, AutoModelForCausalLM

from shared.contract.sections import AdapterSection, QuantSection
from worker.training.model.load import attach_lora, load_base, trainable
from worker.training.model.lora_fusion import FusionReport, fuse_lora

CPU = torch.device("cpu")
LAYERS = 2
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": 128, "attn_pdrop": 0.0}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
HYBRID = SIZES | {"layer_types": ["linear_attention", "full_attention"], "head_dim": 32}
HYBRID |= {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
FAMILY_SIZES = {"gpt2": GPT2, "qwen3_5_text": HYBRID}
IDS = torch.arange(40).reshape(2, 20) % 89 + 3
OTHER_IDS = torch.arange(33).reshape(1, 33) * 7 % 89 + 3
QKV_AND_MLP = FusionReport(qkv=LAYERS, mlp=LAYERS, single=LAYERS, left=0, dequantised_bytes=0)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Folder of a tiny random base of a family."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            torch.manual_seed(11)
            config = AutoConfig.for_model(family, **FAMILY_SIZES.get(family, SIZES), initializer_range=0.1)
            model = AutoModelForCausalLM.from_config(config)
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    torch.nn.init.normal_(parameter)
            made[family] = tmp_path_factory.mktemp(family)
            model.save_pretrained(made[family])
        return made[family]

    return folder


@pytest.fixture(scope="module")
def made(bases):
    """PEFT models that were made before."""
    models: dict[str, PeftModel] = {}

    def make(family: str, double_quant: bool, **lora) -> PeftModel:
        base = load_base(bases(family), QuantSection(double_quant=double_quant), CPU)
        if not lora:
            return attach_lora(base, AdapterSection(rank=4, alpha=8), seed=3)
        options = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **lora}
        return get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **options))

    def once(*args, **lora) -> PeftModel:
        key = repr((args, lora))
        if key not in models:
            models[key] = make(*args, **lora)
        return models[key]

    return once


@pytest.fixture
def tuned(made):
    """A PEFT model with a B that is not zero, ready to be trained; keywords are peft's."""

    def make(family: str = "qwen3", double_quant: bool = True, **lora) -> PeftModel:
        model = copy.deepcopy(made(family, double_quant, **lora))
        randomise(model)
        return model.train()

    return make


def randomise(model: PeftModel, seed: int = 5) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_B" in name:
                parameter.normal_(std=0.1)


def copy_lora(source: PeftModel, target: PeftModel) -> None:
    set_peft_model_state_dict(target, get_peft_model_state_dict(source))


def twin(model: PeftModel, cache: bool = False) -> tuple[PeftModel, FusionReport]:
    """A copy of the model, fused."""
    other = copy.deepcopy(model)
    return other, fuse_lora(other, cache_dequantised=cache)


def learn(model: PeftModel, *batches: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logits of each batch and the gradients of all LoRA parameters summed over the batches."""
    logits = []
    for ids in batches or (IDS,):
        output = model(input_ids=ids, labels=ids, use_cache=False)
        output.loss.backward()
        logits.append(output.logits.detach())
    gradients = [parameter.grad for parameter in trainable(model)]
    model.zero_grad()
    return logits, gradients


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() <= 1e-5 * other.norm(), (one - other).norm() / other.norm()


def assert_learns_alike(ours: PeftModel, theirs: PeftModel, *batches: torch.Tensor) -> None:
    for one, other in zip(learn(ours, *batches), learn(theirs, *batches), strict=True):
        assert_close(one, other)


def waiting(model: PeftModel) -> list[torch.Tensor]:
    """Outputs that groups hold back for projections that were not called yet."""
    groups = {
        m.forward.__self__.group
        for m in model.modules()
        if hasattr(vars(m).get("forward"), "__self__") and hasattr(m.forward.__self__, "group")
    }
    return [tensor for group in groups for tensor in group._waiting.values()]


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("double_quant", [False, True])
@pytest.mark.parametrize("family", ["qwen3", pytest.param("llama", marks=pytest.mark.long), "qwen2"])
def test_logits_and_gradients_are_pefts(tuned, family, double_quant, cache):
    theirs = tuned(family, double_quant)
    ours, report = twin(theirs, cache)
    weights = sum(m.in_features * m.out_features for m in theirs.modules() if isinstance(m, Linear4bit))
    assert report == FusionReport(LAYERS, LAYERS, LAYERS, 0, 4 * weights if cache else 0)
    assert_learns_alike(ours, theirs, IDS, OTHER_IDS, IDS)
    assert not waiting(ours)


def test_qwen2_has_biases(tuned):
    assert any(m.bias is not None and m.bias.any() for m in tuned("qwen2").modules() if isinstance(m, Linear4bit))


@pytest.mark.parametrize("cache", [False, True])
def test_checkpointed_layers_are_recomputed_alike(tuned, cache):
    theirs = tuned()
    ours, _ = twin(theirs, cache)
    for model in (ours, theirs):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    assert_learns_alike(ours, theirs, IDS, OTHER_IDS)
    assert not waiting(ours)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_in_bf16_gradients_are_as_near_to_fp32s_as_pefts(bases, tuned, monkeypatch, device):
    """Accelerators compute in bf16. peft computes its low-rank products in fp32, the fused functions in bf16."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no accelerator")
    _, exact = learn(tuned())
    monkeypatch.setattr("worker.training.model.load.compute_dtype", lambda device: torch.bfloat16)
    base = load_base(bases("qwen3"), QuantSection(), torch.device(device))
    theirs = attach_lora(base, AdapterSection(rank=4, alpha=8), seed=3).train()
    copy_lora(tuned(), theirs)
    ours, report = twin(theirs)
    assert report == QKV_AND_MLP
    errors = []
    for model in (ours, theirs):
        _, gradients = learn(model, IDS.to(device))
        assert {one.dtype for one in gradients} == {torch.float32}
        errors.append(sum((a.cpu() - b).square().sum().item() for a, b in zip(gradients, exact, strict=True)) ** 0.5)
    assert errors[0] < 1.15 * errors[1]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["q_proj", "v_proj"], FusionReport(LAYERS, 0, 0, 0, 0)),
        (["v_proj"], FusionReport(LAYERS, 0, 0, 0, 0)),
        (["o_proj"], FusionReport(0, 0, LAYERS, 0, 0)),
        (["k_proj", "up_proj"], FusionReport(LAYERS, LAYERS, 0, 0, 0)),
        (["down_proj"], FusionReport(0, LAYERS, 0, 0, 0)),
    ],
)
def test_projections_without_lora_stay_plain(tuned, targets, expected):
    theirs = tuned(target_modules=targets)
    ours, report = twin(theirs)
    assert report == expected
    assert_learns_alike(ours, theirs)


def test_ranks_and_scales_may_differ(tuned):
    patterns = {"rank_pattern": {"k_proj": 2, "gate_proj": 7}, "alpha_pattern": {"v_proj": 3, "down_proj": 31}}
    theirs = tuned(use_rslora=True, **patterns)
    ours, report = twin(theirs)
    assert report == QKV_AND_MLP
    assert_learns_alike(ours, theirs)


def test_mlp_with_another_activation_is_fused_as_far_as_it_can_be(tuned):
    theirs = tuned("gemma2")
    ours, report = twin(theirs)
    assert report == FusionReport(qkv=2 * LAYERS, mlp=0, single=2 * LAYERS, left=0, dequantised_bytes=0)
    assert_learns_alike(ours, theirs)


def test_mlp_that_only_looks_like_swiglu_is_not_taken_for_one(tuned):
    theirs = tuned()

    class Louder(type(theirs.get_base_model().model.layers[0].mlp)):
        def forward(self, x):
            return 2 * super().forward(x)

    for layer in theirs.get_base_model().model.layers:
        layer.mlp.__class__ = Louder
        del layer.mlp.forward  # of its class before (`kernels/blocks.py`)
    ours, report = twin(theirs)
    assert (report.mlp, report.qkv) == (0, 2 * LAYERS)
    assert_learns_alike(ours, theirs)


def test_gpt2s_transposed_layers_are_quantised_the_usual_way_round(tuned):
    theirs = tuned("gpt2")
    ours, report = twin(theirs)
    assert report == FusionReport(qkv=0, mlp=0, single=4 * LAYERS, left=0, dequantised_bytes=0)
    assert_learns_alike(ours, theirs)


def test_linear_attention_has_a_group_of_its_own(tuned):
    """Layers of Qwen3.5: one of linear attention (four projections of x, one out) and one of full attention."""
    theirs = tuned("qwen3_5_text")
    ours, report = twin(theirs)
    assert report == FusionReport(qkv=2, mlp=2, single=2, left=0, dequantised_bytes=0)
    assert_learns_alike(ours, theirs)


def test_base_that_is_not_quantised_is_fused_too(bases):
    base = AutoModelForCausalLM.from_pretrained(bases("qwen3"), dtype=torch.float32).requires_grad_(False)
    theirs = attach_lora(base, AdapterSection(rank=4), seed=3).train()
    randomise(theirs)
    ours, report = twin(theirs, cache=True)
    assert report == QKV_AND_MLP
    assert_learns_alike(ours, theirs)


@pytest.mark.parametrize("options", [{"lora_dropout": 0.1}, {"use_dora": True}])
def test_what_is_more_than_plain_lora_is_left_to_peft(tuned, options):
    model = tuned(**options)
    forwards = [module.forward for module in model.modules()]
    report = fuse_lora(model, cache_dequantised=True)
    assert report == FusionReport(0, 0, 0, 7 * LAYERS, 0)
    assert [module.forward for module in model.modules()] == forwards


def test_several_adapters_are_left_to_peft(tuned):
    model = tuned()
    model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"]))
    report = fuse_lora(model, cache_dequantised=False)
    assert report == FusionReport(qkv=LAYERS, mlp=LAYERS, single=LAYERS, left=LAYERS, dequantised_bytes=0)


def test_adapter_added_later_is_heard(tuned):
    theirs = tuned()
    ours, _ = twin(theirs)
    for model in (ours, theirs):
        torch.manual_seed(1)
        model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj", "up_proj"], init_lora_weights=False))
        model.base_model.set_adapter(["default", "second"])
    assert_learns_alike(ours, theirs)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("cache", [False, True])
def test_evaluation_gives_pefts_logits_and_training_continues(tuned, mode, cache):
    theirs = tuned()
    ours, _ = twin(theirs, cache)
    with mode():
        assert_close([ours.eval()(input_ids=IDS).logits], [theirs.eval()(input_ids=IDS).logits])
    assert not waiting(ours)
    assert_learns_alike(ours.train(), theirs.train())


def test_disabled_adapter_is_the_base(tuned):
    theirs = tuned()
    ours, _ = twin(theirs)
    with torch.no_grad():
        adapted = ours(input_ids=IDS).logits
        with ours.disable_adapter(), theirs.disable_adapter():
            plain = ours(input_ids=IDS).logits
            assert torch.equal(plain, theirs(input_ids=IDS).logits)
        assert not torch.allclose(plain, adapted)
        assert torch.equal(ours(input_ids=IDS).logits, adapted)


@pytest.mark.filterwarnings("ignore:Merge lora module", "ignore:Unmerge lora module")
@pytest.mark.parametrize("cache", [False, True])
def test_merging_unmerging_and_unloading_are_pefts(tuned, cache):
    theirs = tuned(target_modules=["v_proj", "gate_proj", "o_proj"])
    ours, _ = twin(theirs, cache)
    for change in ("merge_adapter", "unmerge_adapter"):
        for model in (ours, theirs):
            getattr(model, change)()
        with torch.no_grad():
            assert_close([ours(input_ids=IDS).logits], [theirs(input_ids=IDS).logits])
    with torch.no_grad():
        assert_close([ours.unload()(input_ids=IDS).logits], [theirs.unload()(input_ids=IDS).logits])


def test_adapter_is_saved_and_loaded_as_before(tuned, bases, tmp_path):
    theirs = tuned()
    ours, _ = twin(theirs, cache=True)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [name for name, _ in ours.named_modules()] == [name for name, _ in theirs.named_modules()]
    for model, folder in ((ours, "ours"), (theirs, "theirs")):
        model.save_pretrained(tmp_path / folder)
    ours_saved, theirs_saved = (tmp_path / folder / "adapter_model.safetensors" for folder in ("ours", "theirs"))
    assert ours_saved.read_bytes() == theirs_saved.read_bytes()
    again = PeftModel.from_pretrained(load_base(bases("qwen3"), QuantSection(), CPU), tmp_path / "ours")
    with torch.no_grad():
        assert_close([ours(input_ids=IDS).logits], [again(input_ids=IDS).logits])


def test_loaded_parameters_are_computed_with(tuned):
    theirs = tuned()
    ours, _ = twin(theirs, cache=True)
    randomise(theirs, seed=8)
    copy_lora(theirs, ours)
    assert_learns_alike(ours, theirs)


def test_steps_of_an_optimizer_stay_together(tuned):
    theirs = tuned()
    ours, _ = twin(theirs)
    for model in (ours, theirs):
        optimizer = torch.optim.SGD(trainable(model), lr=0.1)
        for ids in (IDS, OTHER_IDS, IDS):
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_close(trainable(ours), trainable(theirs))


def test_copy_of_a_fused_model_has_weights_of_its_own(tuned):
    ours, _ = twin(tuned(), cache=True)
    other = copy.deepcopy(ours)
    randomise(other, seed=9)
    theirs = tuned()
    randomise(theirs, seed=9)
    assert_learns_alike(other, theirs)


# -- projections called by hand ---------------------------------------------------------------------------------------


@pytest.fixture
def attention_pair(tuned):
    theirs = tuned()
    ours, _ = twin(theirs)
    return tuple(model.get_base_model().model.layers[0].self_attn for model in (ours, theirs))


def hidden(seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(seed))


def assert_same_calls(pair, calls: list[tuple[str, torch.Tensor]]) -> None:
    ours, theirs = ([getattr(attention, name)(x) for name, x in calls] for attention in pair)
    assert_close([one.detach() for one in ours], [one.detach() for one in theirs])


@pytest.mark.parametrize("order", ["qkv", "kqv", "vkq", "qqkv", "k", "qvv", "kkq"])
def test_any_order_of_calls_is_right(attention_pair, order):
    x = hidden()
    assert_same_calls(attention_pair, [(f"{letter}_proj", x) for letter in order])


def test_outputs_wait_for_the_same_tensor_only(attention_pair):
    x, equal = hidden(), hidden()
    ours = attention_pair[0]
    ours.q_proj(x)
    assert len(ours.q_proj.forward.__self__.group._waiting) == 2
    assert_same_calls(attention_pair, [("q_proj", x), ("k_proj", hidden(1)), ("v_proj", equal), ("k_proj", x)])


def test_tensor_changed_in_place_is_not_the_same(attention_pair):
    results = []
    for attention in attention_pair:
        x = hidden()
        with torch.no_grad():
            attention.q_proj(x)
            x.mul_(3)
            results.append([attention.k_proj(x)])
    assert_close(*results)


def test_output_without_a_gradient_is_not_handed_to_one_who_needs_it(attention_pair):
    ours, _ = attention_pair
    x = hidden()
    with torch.no_grad():
        ours.q_proj(x)
    assert ours.k_proj(x).requires_grad


def test_nothing_outlives_the_forward_of_the_attention_layer(tuned):
    model = tuned()
    fuse_lora(model, cache_dequantised=False)
    attention = model.get_base_model().model.layers[0].self_attn
    seen: list[weakref.ref] = []

    def fail(*_):
        seen.extend(weakref.ref(tensor) for tensor in waiting(model))
        raise RuntimeError("in the middle")

    handle = attention.k_proj.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        model(input_ids=IDS)
    handle.remove()
    gc.collect()
    assert len(seen) == 2
    assert not waiting(model)
    assert all(reference() is None for reference in seen)


def test_autocast_is_pefts(tuned):
    theirs = tuned()
    ours, _ = twin(theirs)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(input_ids=IDS).logits, theirs(input_ids=IDS).logits)

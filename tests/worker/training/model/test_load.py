"""The quantised base and the LoRA layers on it."""

from __future__ import annotations

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from peft.tuners.lora import LoraLayer

from shared.contract.sections import AdapterSection, DeviceSection, QuantSection
from shared.errors import Code, ContractRejected
from shared.gpus.torch_report import ask_torch
from tests.support.pretended_gpu import MACHINES, pretend
from worker.training.model import load
from worker.training.model.load import (
    attach_lora,
    compute_dtype,
    load_base,
    load_tokenizer,
    pick_device,
    trainable,
)

CPU = torch.device("cpu")
IDS = torch.arange(300, 320).reshape(1, 20)
SECTION = AdapterSection(rank=4, alpha=8)


@pytest.fixture
def base(tiny_base):
    return load_base(tiny_base, QuantSection(), CPU)


def four_bit(model) -> dict[str, Linear4bit]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Linear4bit)}


@pytest.mark.parametrize("double_quant", [True, False])
def test_every_linear_layer_but_the_head_is_in_nf4(tiny_base, double_quant):
    model = load_base(tiny_base, QuantSection(double_quant=double_quant), CPU)
    layers = four_bit(model)
    assert len(layers) == 4 * 7
    for module in layers.values():
        state = module.weight.quant_state
        assert (state.quant_type, state.nested, state.blocksize) == ("nf4", double_quant, 64)
        assert module.weight.dtype == torch.uint8
        assert module.weight.numel() == module.in_features * module.out_features // 2
    assert model.lm_head.weight.dtype == torch.float32
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_quantised_model_still_resembles_its_base(base, tiny_base):
    from transformers import AutoModelForCausalLM

    full = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
    with torch.no_grad():
        one, other = base(IDS).logits, full(IDS).logits
    assert 0 < ((one - other).norm() / other.norm()).item() < 0.5


def test_lora_is_on_every_linear_layer_and_on_nothing_else(base):
    quantised = set(four_bit(base))
    model = attach_lora(base, SECTION, seed=0)
    adapted = {name for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    assert adapted == {f"base_model.model.{name}" for name in quantised}


def test_only_lora_is_trainable_and_in_fp32(base):
    model = attach_lora(base, SECTION, seed=0)
    names = [name for name, parameter in sorted(model.named_parameters()) if parameter.requires_grad]
    assert len(names) == 4 * 7 * 2
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    parameters = trainable(model)
    assert [id(one) for one in parameters] == [id(dict(model.named_parameters())[name]) for name in names]
    assert {one.dtype for one in parameters} == {torch.float32}


def test_b_is_zero_so_the_first_step_starts_at_the_base_exactly(tiny_base):
    plain = load_base(tiny_base, QuantSection(), CPU).train()
    expected = plain(input_ids=IDS, use_cache=False).logits
    model = attach_lora(load_base(tiny_base, QuantSection(), CPU), SECTION, seed=0).train()
    assert torch.equal(model(input_ids=IDS, use_cache=False).logits, expected)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            assert not parameter.any(), name
        elif "lora_A" in name:
            assert parameter.abs().min() > 0 or parameter.std() > 0, name


def test_a_comes_from_the_seed_alone(tiny_base):
    def first(seed: int) -> list[torch.Tensor]:
        torch.rand(3)  # whatever was drawn before
        return trainable(attach_lora(load_base(tiny_base, QuantSection(), CPU), SECTION, seed))

    one, again, other = first(1), first(1), first(2)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_target_modules_choose_the_layers(base):
    model = attach_lora(base, AdapterSection(rank=4, target_modules=["q_proj", "v_proj"]), seed=0)
    adapted = {name.rsplit(".", 1)[1] for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    assert adapted == {"q_proj", "v_proj"}


def test_target_modules_that_fit_nothing_are_refused(base):
    with pytest.raises(ContractRejected) as refused:
        attach_lora(base, AdapterSection(target_modules=["no_such_proj"]), seed=0)
    assert refused.value.code == Code.CONTRACT_UNSUPPORTED
    assert refused.value.param == "adapter.target_modules"
    assert "no_such_proj" in refused.value.message


def test_llama_is_adapted_too(tiny_llama):
    model = attach_lora(load_base(tiny_llama.base, QuantSection(), CPU), SECTION, seed=0)
    assert len(trainable(model)) == 4 * 7 * 2


def test_pad_token_is_the_end_token_by_default(tiny_base, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.pad_token_id == loaded.eos_token_id


def test_weights_that_are_pickle_are_not_loaded(tiny_base, tmp_path):
    for path in tiny_base.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    torch.save({"model.embed_tokens.weight": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        load_base(tmp_path, QuantSection(), CPU)


def test_dtype_follows_the_device():
    assert compute_dtype(torch.device("cuda")) == torch.bfloat16
    assert compute_dtype(CPU) == torch.float32


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """Makes this process, which has loaded the real torch, find what a pretended machine's torch finds."""

    def machine(name: str | None) -> None:
        pretend(MACHINES[name] if name else None, tmp_path / "gpu", monkeypatch)
        report = ask_torch()
        monkeypatch.setattr(load, "read_torch", report.model_dump)

    return machine


@pytest.mark.parametrize(
    ("asked", "machine", "expected"),
    [
        ({}, None, "cpu"),
        ({}, "new driver", "cuda"),
        ({}, "MIG", "cuda"),
        ({}, "WSL2", "cuda"),
        ({"device": "cpu"}, "new driver", "cpu"),
        ({"device": "cpu"}, "old driver", "cpu"),
        ({"device": "cuda"}, None, "cpu"),
        ({"device": "cuda"}, "old driver", "cpu"),
        ({"device": "cuda"}, "two cards", "cuda"),
        ({"require_gpu": True}, "new driver", "cuda"),
    ],
)
def test_the_device_is_the_one_the_contract_allows(pretended, asked, machine, expected):
    pretended(machine)
    assert pick_device(DeviceSection(**asked)).type == expected


@pytest.mark.parametrize(
    ("asked", "machine", "code"),
    [
        ({"require_gpu": True}, None, Code.GPU_REQUIRED),
        ({"device": "cuda", "allow_cpu_fallback": False}, None, Code.GPU_REQUIRED),
        ({"device": "cpu", "require_gpu": True}, "new driver", Code.GPU_REQUIRED),
        ({}, "old driver", Code.GPU_UNUSABLE),
        ({}, "CPU build", Code.GPU_UNUSABLE),
        ({}, "T4", Code.GPU_UNUSABLE),
        ({"require_gpu": True}, "V100", Code.GPU_UNUSABLE),
        ({"device": "cuda", "allow_cpu_fallback": False}, "old driver", Code.GPU_UNUSABLE),
    ],
)
def test_a_gpu_that_is_wanted_and_missing_is_refused(pretended, asked, machine, code):
    pretended(machine)
    with pytest.raises(ContractRejected) as refused:
        pick_device(DeviceSection(**asked))
    assert refused.value.code == code
    assert code is Code.GPU_REQUIRED or refused.value.message.startswith(MACHINES[machine].cards[0].name)

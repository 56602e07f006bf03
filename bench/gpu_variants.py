"""One part of ``bench/gpu.py`` in a process of its own.

python bench/gpu_lanes.py base SIZE OUT_DIR DEVICE     a Qwen3 of random weights
python bench/gpu_lanes.py probe DEVICE                 what the device can do at most, as JSON
python bench/gpu_lanes.py mens-VARIANT PLAN RUN_DIR    the product's trainer with one thing changed
python bench/gpu_lanes.py unsloth RECIPE OUT_DIR       Unsloth, prints its outcome as JSON
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

SHAPES: dict[str, dict[str, int]] = {
    # hidden, layers, heads, kv heads, head dim, intermediate, vocabulary, tied: as Qwen publishes them
    "tiny": dict(
        zip(names := ("h", "L", "n", "kv", "d", "i", "V", "tied"), (128, 2, 4, 2, 32, 384, 4096, True), strict=True)
    ),
    "0.6B": dict(zip(names, (1024, 28, 16, 8, 128, 3072, 151_936, True), strict=True)),
    "1.7B": dict(zip(names, (2048, 28, 16, 8, 128, 6144, 151_936, True), strict=True)),
    "4B": dict(zip(names, (2560, 36, 32, 8, 128, 9728, 151_936, True), strict=True)),
    "8B": dict(zip(names, (4096, 36, 32, 8, 128, 12_288, 151_936, False), strict=True)),
}


def make_base(size: str, folder: Path, device: str) -> None:
    """Write a base of that size; speed does not depend on what the weights say."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from bench.chats import corpus
    from worker import pretrain

    pretrain.VOCAB_SIZE = 4096
    tokenizer = pretrain.train_tokenizer([{"text": text} for text in corpus()])
    tokenizer.model_max_length = 40_960
    shape = SHAPES[size]
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=shape["V"],
        hidden_size=shape["h"],
        num_hidden_layers=shape["L"],
        num_attention_heads=shape["n"],
        num_key_value_heads=shape["kv"],
        head_dim=shape["d"],
        intermediate_size=shape["i"],
        max_position_embeddings=40_960,
        tie_word_embeddings=shape["tied"],
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def probe(device: str) -> dict[str, float]:
    """FLOP/s of a large bf16 product, and bytes/s of a large copy, read and write counted; the best of several."""
    side, size = (8192, 1 << 31) if device == "cuda" else (512, 1 << 24)
    left, right = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return {
        "flops": 2 * side**3 / _fastest(lambda: torch.matmul(left, right), device),
        "bytes_per_second": 2 * size / _fastest(lambda: target.copy_(source), device),
    }


def _fastest(work: Callable[[], object], device: str, tries: int = 20) -> float:
    seconds = []
    for _ in range(tries):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def train_variant(variant: str, plan: str, run_dir: str) -> int:
    """The product's trainer, changed in one respect: ``nf4`` no cache of dequantised weights, ``cache`` with it,
    ``bf16`` the same weights not quantised, ``quiet`` telemetry kept in memory until the end.
    """
    engine: Any = importlib.import_module("worker.train")
    trainer: Any = importlib.import_module("worker.training.trainer")
    model: Any = importlib.import_module("worker.training.model")

    choose, load = trainer.choose_budget, model.load_quantised
    if variant in {"nf4", "cache"}:
        cached = variant == "cache"
        trainer.choose_budget = lambda *given, **named: replace(choose(*given, **named), cache_dequantised=cached)
    if variant == "bf16":
        trainer.choose_budget = lambda *given, **named: replace(choose(*given, **named), cache_dequantised=False)
        model.load_quantised = lambda *given, **named: dequantised(load(*given, **named))
    if variant == "quiet":
        hold_telemetry(engine.Telemetry)
    return engine.main([plan, run_dir])


def dequantised(model: torch.nn.Module) -> torch.nn.Module:
    """Put a plain linear layer with the dequantised weight in the place of each NF4 layer."""
    import bitsandbytes

    for name, module in list(model.named_modules()):
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            weight = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            plain = torch.nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
            plain.weight = torch.nn.Parameter(weight.to(module.compute_dtype), requires_grad=False)
            model.set_submodule(name, plain)
    model.is_quantized = model.is_loaded_in_4bit = False  # type: ignore[assignment]  # so that peft takes them as they are
    return model


def hold_telemetry(telemetry: Any) -> None:
    """Note events with their time, and write them when the run is over."""
    held: list[str] = []

    def emit(self: Any, event: str, payload: object) -> None:
        held.append(json.dumps({"ts_ms": time.time_ns() // 1_000_000, "event": event, "payload": payload}) + "\n")
        if event == "train_complete":
            self._file.writelines(held)

    telemetry.emit = emit


def unsloth(recipe: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Unsloth as its notebooks run it, with packing; not tried without a GPU."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
    from unsloth import FastLanguageModel  # patches the libraries below, so it comes first

    from bench.train_lanes import StepClock, arguments, counting, outcome, packed_steps

    model, tokenizer = FastLanguageModel.from_pretrained(
        recipe["base"], max_seq_length=recipe["seq_len"], load_in_4bit=True, dtype=torch.bfloat16
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=recipe["rank"],
        lora_alpha=2 * recipe["rank"],
        lora_dropout=0,
        use_gradient_checkpointing=False,
        random_state=recipe["seed"],
    )
    clock = StepClock()
    chosen = (
        arguments(recipe, folder)
        | {"packing": True, "per_device_train_batch_size": 4, "max_length": recipe["seq_len"]}
        | packed_steps(recipe, 4)
    )
    trainer = counting(SFTTrainer, clock)(
        model=model,
        args=SFTConfig(**chosen, learning_rate=max(recipe["rates"])),
        train_dataset=Dataset.from_list(recipe["rows"]),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.train()
    return outcome(model, clock, folder, same_steps=False)


def main(lane: str, *given: str) -> int:
    if lane == "base":
        make_base(given[0], Path(given[1]), given[2])
    elif lane == "probe":
        print(json.dumps(probe(given[0])))
    elif lane == "unsloth":
        print(json.dumps(unsloth(json.loads(Path(given[0]).read_text()), Path(given[1]))))
    else:
        return train_variant(lane.removeprefix("mens-"), *given)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

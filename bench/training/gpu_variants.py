"""One variant of ``bench/gpu.py`` in a separate process, or the probe of its device.

python -m bench.training.gpu_variants probe DEVICE               print the device's peak rates, as JSON
python -m bench.training.gpu_variants mens-VARIANT PLAN RUN_DIR  run the product's trainer with one thing changed
python -m bench.training.gpu_variants unsloth RECIPE RUN_DIR     run Unsloth, and print its outcome as JSON
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from bench.training.recipe import Recipe, TrainerOutcome

if TYPE_CHECKING:
    from worker.training.reporting.telemetry import Telemetry


def probe(device: str) -> dict[str, float]:
    """Measure FLOP/s of a large bf16 product, and bytes/s of a large copy (read and write); the best of several."""
    # On a CPU the figures mean nothing, and bf16 products are slow.
    side, size = (8192, 1 << 31) if device == "cuda" else (128, 1 << 24)
    left, right = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return {
        "flops": 2 * side**3 / _fastest(lambda: torch.matmul(left, right), device),
        "bytes_per_second": 2 * size / _fastest(lambda: target.copy_(source), device),
    }


def _fastest(work: Callable[[], object], device: str, tries: int = 20) -> float:
    """Return the seconds of the fastest of several runs."""
    synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = []
    for _ in range(tries):
        # Kernels run asynchronously: earlier ones must have ended, and these must end within the time.
        synchronize()
        began = time.perf_counter()
        work()
        synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def train_variant(variant: str, plan: str, run_dir: str) -> int:
    """Run the product's trainer with one change: ``nf4``: without the cache of dequantised weights; ``cache``: with it;
    ``bf16``: the same weights, not quantised; ``quiet``: telemetry kept in memory until the end.
    """
    from worker import train
    from worker.training import trainer
    from worker.training.model import load
    from worker.training.model.memory_budget import Budget, choose_budget
    from worker.training.reporting.telemetry import Telemetry

    def budget(*arguments: Any, **named: Any) -> Budget:
        return replace(choose_budget(*arguments, **named), cache_dequantised=variant == "cache")

    def load_dequantised(*arguments: Any, **named: Any) -> torch.nn.Module:
        return dequantised(load_base(*arguments, **named))

    load_base = load.load_base
    # `patch.object` fails if the trainer no longer has the target; an assignment would silently change nothing.
    with ExitStack() as changes:
        if variant != "quiet":
            changes.enter_context(patch.object(trainer, "choose_budget", budget))
        if variant == "bf16":
            changes.enter_context(patch.object(load, "load_base", load_dequantised))
        if variant == "quiet":
            changes.enter_context(patch.object(Telemetry, "emit", held_events()))
        return train.main([plan, run_dir])


def dequantised(model: torch.nn.Module) -> torch.nn.Module:
    """Replace each NF4 layer by a plain linear layer with the dequantised weight."""
    import bitsandbytes

    for name, module in list(model.named_modules()):
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            weight = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            plain = torch.nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
            plain.weight = torch.nn.Parameter(weight.to(module.compute_dtype), requires_grad=False)
            model.set_submodule(name, plain)
    # Otherwise peft would wrap the plain layers as quantised ones.
    model.is_quantized = model.is_loaded_in_4bit = False  # type: ignore[assignment]
    return model


def held_events() -> Callable[[Telemetry, str, object], None]:
    """Return a ``Telemetry.emit`` that keeps events with their time, and writes them when the run is over."""
    held: list[str] = []

    def emit(self: Telemetry, event: str, payload: object) -> None:
        held.append(json.dumps({"ts_ms": time.time_ns() // 1_000_000, "event": event, "payload": payload}) + "\n")
        if event == "train_complete":
            self._file.writelines(held)

    return emit


def unsloth(recipe: Recipe, folder: Path) -> TrainerOutcome:
    """Run Unsloth as in its notebooks, with packing; not tried without a GPU."""
    # It patches trl, transformers and peft, so it is imported before them.
    model_class = importlib.import_module("unsloth").FastLanguageModel
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from bench.training.train_variants import StepClock, arguments, counting, outcome_of, packed_steps

    model, tokenizer = model_class.from_pretrained(
        recipe.base, max_seq_length=recipe.seq_len, load_in_4bit=True, dtype=torch.bfloat16
    )
    model = model_class.get_peft_model(
        model,
        r=recipe.rank,
        lora_alpha=2 * recipe.rank,
        lora_dropout=0,
        use_gradient_checkpointing=False,
        random_state=recipe.seed,
    )
    clock = StepClock()
    chosen = (
        arguments(recipe, folder)
        | {"packing": True, "per_device_train_batch_size": 4, "max_length": recipe.seq_len}
        | packed_steps(recipe, 4)
    )
    trainer = counting(SFTTrainer, clock)(
        model=model,
        args=SFTConfig(**chosen, learning_rate=max(recipe.rates)),
        train_dataset=Dataset.from_list(recipe.rows),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.train()
    return outcome_of(model, recipe, clock, folder, same_steps=False)


def main(variant: str, *arguments: str) -> int:
    """Entry point."""
    if variant == "probe":
        print(json.dumps(probe(*arguments)))
    elif variant == "unsloth":
        recipe, folder = map(Path, arguments)
        print(json.dumps(asdict(unsloth(Recipe(**json.loads(recipe.read_text())), folder))))
    else:
        return train_variant(variant.removeprefix("mens-"), *arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""One peer of ``bench/train.py`` in a separate process, in the peers' environment: prints its outcome as JSON.

python -m bench.training.train_variants hf|trl-SETTING RECIPE.json RUN_DIR
python -m bench.training.train_variants evaluate RECIPE.json '{"variant": "adapter folder"}'
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, PeftModel, get_peft_model
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TrainerCallback

from bench.harness.peak_memory import peak_bytes
from bench.training.recipe import UNTIMED_STEPS, EncodedRow, Recipe, TrainerOutcome

TRL_SETTINGS: dict[str, dict[str, Any]] = {
    # Several documents in one sequence of seq_len tokens: transformers masks them from each other by position ids.
    "packed": {"packing": True, "packing_strategy": "bfd", "per_device_train_batch_size": 1},
    # The same, several such sequences at a time.
    "packed-large": {"packing": True, "packing_strategy": "bfd", "per_device_train_batch_size": 4},
    # The same steps as the product's, rows laid end to end in each micro-batch.
    "padding-free": {"padding_free": True, "max_length": None},
    # The same steps as the product's, one row at a time: nothing to pad, and no mask.
    "single": {"per_device_train_batch_size": 1},
    # Rows of one length together: the rows of a step differ from the product's.
    "grouped": {"train_sampling_strategy": "group_by_length"},
}


def frozen_base(recipe: Recipe) -> torch.nn.Module:
    """Load the base in NF4 with double quantisation, or unquantised; bf16 on a GPU, fp32 on a CPU."""
    dtype = torch.bfloat16 if recipe.device == "cuda" else torch.float32
    nf4 = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    config = nf4 if recipe.quant == "nf4" else None
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        recipe.base, quantization_config=config, dtype=dtype, device_map={"": recipe.device}
    )
    return model


def adapted(recipe: Recipe) -> PeftModel:
    """Add LoRA to every linear layer, initialised as in the product."""
    model = frozen_base(recipe)
    torch.manual_seed(recipe.seed)
    rank = recipe.rank
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", bias="none", task_type="CAUSAL_LM")
    return get_peft_model(model.requires_grad_(False), config)


class StepClock(TrainerCallback):
    """Records each optimizer step's end, cost, and number of tokens without padding."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.cpu_ends: list[float] = []
        self.tokens: list[int] = []
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.pending = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        # Kernels run asynchronously: otherwise a step would end before its work.
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        self.cpu_ends.append(time.process_time())
        self.tokens.append(self.pending)
        self.pending = 0

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        if "loss" in logs:
            self.losses.append(logs["loss"])
            self.norms.append(float(logs["grad_norm"]))

    def speed(self, ends: list[float]) -> float:
        """Return the tokens per second of the timed steps, by one of the clocks."""
        return sum(self.tokens[UNTIMED_STEPS:]) / (ends[-1] - ends[UNTIMED_STEPS - 1])


def counting(trainer_class: type, clock: StepClock) -> type:
    """Return a trainer class that takes rows in order and reports their tokens to the clock."""

    class Counting(trainer_class):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            if self.args.train_sampling_strategy == "group_by_length":
                return super()._get_train_sampler(dataset)
            return torch.utils.data.SequentialSampler(dataset if dataset is not None else self.train_dataset)

        def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any) -> Any:
            mask = inputs.get("attention_mask")
            clock.pending += inputs["input_ids"].numel() if mask is None else int(mask.sum())
            return super().training_step(model, inputs, *rest)

    return Counting


def arguments(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Return the arguments of both trainers; all other arguments keep their defaults."""
    return {
        "output_dir": str(folder / "trainer"),
        "per_device_train_batch_size": recipe.rows_per_batch,
        "gradient_accumulation_steps": recipe.grad_accum,
        "max_steps": len(recipe.rates),
        "weight_decay": recipe.weight_decay,
        "max_grad_norm": recipe.max_grad_norm,
        "seed": recipe.seed,
        "gradient_checkpointing": recipe.checkpointing,
        "bf16": recipe.device == "cuda",
        "use_cpu": recipe.device == "cpu",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "report_to": "none",
    }


def optimizer_of(model: torch.nn.Module, recipe: Recipe) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Return Trainer's default optimizer, at the product's rates (unlike the product's, transformers' warm-up begins at
    zero).
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # The schedule multiplies this rate, so its factors are the rates themselves.
    optimizer = torch.optim.AdamW(parameters, lr=1.0, weight_decay=recipe.weight_decay, fused=True)
    rates = recipe.rates
    return optimizer, LambdaLR(optimizer, lambda step: rates[min(step, len(rates) - 1)])


def hugging_face(recipe: Recipe, folder: Path) -> TrainerOutcome:
    """Train with `transformers.Trainer` and peft, the usual first choice."""
    clock, tokenizer, model = StepClock(), AutoTokenizer.from_pretrained(recipe.base), adapted(recipe)
    trainer = counting(transformers.Trainer, clock)(
        model=model,
        args=transformers.TrainingArguments(**arguments(recipe, folder)),
        train_dataset=[row | {"attention_mask": [1] * len(row["input_ids"])} for row in recipe.rows],
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, padding=True),
        callbacks=[clock],
        optimizers=optimizer_of(model, recipe),
    )
    trainer.train()
    return outcome_of(model, recipe, clock, folder, same_steps=True)


def trl(recipe: Recipe, folder: Path, setting: str) -> TrainerOutcome:
    """Run TRL's SFTTrainer at one of its settings, on rows that are already encoded and truncated."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    clock, tokenizer = StepClock(), AutoTokenizer.from_pretrained(recipe.base)
    chosen = arguments(recipe, folder) | {"max_length": recipe.seq_len} | TRL_SETTINGS[setting]
    if setting == "single":
        # A step still has as many rows as the product's step.
        chosen["gradient_accumulation_steps"] = recipe.rows_per_batch * recipe.grad_accum
    if setting.startswith("packed"):
        chosen |= packed_steps(recipe, chosen["per_device_train_batch_size"])
    model = adapted(recipe)
    trainer = counting(SFTTrainer, clock)(
        model=model,
        args=SFTConfig(**chosen),
        train_dataset=Dataset.from_list(recipe.rows),
        processing_class=tokenizer,
        callbacks=[clock],
        optimizers=(None, None),
    )
    # SFTTrainer casts LoRA to bf16 when it is made, so the optimizer is made after it.
    trainer.optimizer, trainer.lr_scheduler = optimizer_of(model, recipe)
    trainer.train()
    return outcome_of(model, recipe, clock, folder, same_steps=setting in {"single", "padding-free"})


def packed_steps(recipe: Recipe, packs: int) -> dict[str, int]:
    """Return the number of packed micro-batches that hold a step's tokens, and the number of steps for all rows."""
    tokens, size = sum(len(row["input_ids"]) for row in recipe.rows), recipe.seq_len * packs
    accumulated = max(1, round(tokens / len(recipe.rates) / size))
    steps = min(len(recipe.rates), tokens // (size * accumulated))
    return {"gradient_accumulation_steps": accumulated, "max_steps": max(UNTIMED_STEPS + 1, steps)}


def outcome_of(model: PeftModel, recipe: Recipe, clock: StepClock, folder: Path, *, same_steps: bool) -> TrainerOutcome:
    """Save the adapter, and describe the run."""
    if recipe.quant == "nf4":
        check_gradients_were_real(model)
    model.save_pretrained(folder / "adapter")
    return TrainerOutcome(
        tokens_per_second=clock.speed(clock.ends),
        tokens_per_cpu_second=clock.speed(clock.cpu_ends),
        losses=clock.losses if same_steps else [],
        grad_norms=clock.norms if same_steps else [],
        peak_bytes=torch.cuda.max_memory_reserved() if torch.cuda.is_available() else peak_bytes(),
        adapter=str(folder / "adapter"),
        facts={"tokens": sum(clock.tokens)},
    )


def check_gradients_were_real(model: torch.nn.Module) -> None:
    """Exit if bitsandbytes switched to its inference layout (only eval does that), whose gradients are wrong."""
    states = [module.weight.quant_state for module in model.modules() if isinstance(module, Linear4bit)]
    if not states or any(getattr(state, "packing_format_for_cpu", False) for state in states):
        sys.exit("the base is not in bitsandbytes' training layout")


@torch.no_grad()
def evaluate(recipe: Recipe, adapters: dict[str, str]) -> dict[str, float]:
    """Return the mean loss per supervised token of each adapter on all rows, one row at a time, computed with
    transformers and peft.
    """
    losses: dict[str, float] = {}
    for name, folder in adapters.items():
        model = frozen_base(recipe)
        for module in model.modules():
            # Otherwise bitsandbytes uses its inference layout in eval mode, which computes in bf16 (decision 0008).
            if isinstance(module, Linear4bit):
                module.support_avx512bf16_for_cpu = False
        tuned = PeftModel.from_pretrained(model, folder).eval()
        scores = [loss_of(tuned, row, recipe.device) for row in recipe.rows + recipe.held_out]
        losses[name] = math.fsum(loss for loss, _ in scores) / sum(targets for _, targets in scores)
    return losses


def loss_of(model: torch.nn.Module, row: EncodedRow, device: str) -> tuple[float, int]:
    """Return the summed cross-entropy in nats, and the number of targets."""
    labels = torch.tensor(row["labels"][1:], device=device)
    logits = model(input_ids=torch.tensor([row["input_ids"]], device=device)).logits[0, :-1].float()
    return float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum")), int((labels != -100).sum())


def main() -> None:
    """Entry point."""
    variant, recipe = sys.argv[1], Recipe(**json.loads(Path(sys.argv[2]).read_text()))
    transformers.utils.logging.set_verbosity_error()
    if variant == "evaluate":
        print(json.dumps(evaluate(recipe, json.loads(sys.argv[3]))))
        return
    folder = Path(sys.argv[3])
    outcome = hugging_face(recipe, folder) if variant == "hf" else trl(recipe, folder, variant.removeprefix("trl-"))
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()

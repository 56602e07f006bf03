"""One peer of ``bench/preference.py`` in a separate process, in the peers' environment: prints its outcome as JSON.

python -m bench.training.pair_variants trl-batch|trl-single PAIRS.json RUN_DIR [STEPS]
python -m bench.training.pair_variants forward PAIRS.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.harness.peak_memory import peak_bytes
from bench.training.recipe import UNTIMED_STEPS

WARM_CHATS = 2
"""Number of chats at the start of the plain forward pass that are not counted."""
Recipe = dict[str, Any]


def base_of(recipe: Recipe) -> torch.nn.Module:
    """Load the base in float32."""
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(recipe["base"], dtype=torch.float32)
    return model.requires_grad_(False)


def trl(recipe: Recipe, folder: Path, setting: str, steps: int) -> dict[str, Any]:
    """Run TRL's DPOTrainer with stored reference scores, on pairs that are already encoded and truncated."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    ends: list[float] = []
    losses: list[float] = []

    class Fed(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.process_time())

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            losses.extend([logs["loss"]] if "loss" in logs else [])

    pairs, rates = recipe["pairs_per_step"], recipe["rates"]
    together = pairs if setting == "batch" else 1
    model = base_of(recipe)
    torch.manual_seed(recipe["seed"])
    rank = recipe["rank"]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", bias="none", task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    began = time.process_time()
    trainer = Fed(
        model,
        args=DPOConfig(
            output_dir=str(folder / "trainer"),
            per_device_train_batch_size=together,
            gradient_accumulation_steps=pairs // together,
            max_steps=steps,
            beta=recipe["beta"],
            max_grad_norm=recipe["max_grad_norm"],
            max_length=None,
            precompute_ref_log_probs=True,
            train_sampling_strategy="sequential",
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            report_to="none",
        ),
        train_dataset=Dataset.from_list(recipe["pairs"][: steps * pairs]),
        processing_class=AutoTokenizer.from_pretrained(recipe["base"]),
        callbacks=[Clock()],
    )
    reference = time.process_time() - began
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # The schedule multiplies this rate, so its factors are the rates themselves.
    trainer.optimizer = torch.optim.AdamW(parameters, lr=1.0, weight_decay=recipe["weight_decay"], fused=True)
    trainer.lr_scheduler = LambdaLR(trainer.optimizer, lambda step: rates[min(step, len(rates) - 1)])
    trainer.train()
    return {
        "cpu_seconds": ends[-1] - ends[UNTIMED_STEPS - 1],
        "reference_cpu_seconds": reference,
        "losses": losses,
        "peak_bytes": peak_bytes(),
    }


@torch.no_grad()
def forward(recipe: Recipe) -> dict[str, Any]:
    """Run the plain base over the chats, one at a time without padding, with logits of the scored tokens only."""
    model = base_of(recipe).eval()
    chats = [(pair["prompt_ids"], pair[name]) for pair in recipe["pairs"] for name in ("chosen_ids", "rejected_ids")]
    seconds = 0.0
    for number, (prompt, answer) in enumerate([*chats[:WARM_CHATS], *chats]):
        began = time.process_time()
        model(input_ids=torch.tensor([prompt + answer]), logits_to_keep=len(answer) + 1, use_cache=False)
        seconds += time.process_time() - began if number >= WARM_CHATS else 0.0
    return {"cpu_seconds": seconds}


def main() -> None:
    """Entry point."""
    variant, recipe = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    transformers.utils.logging.set_verbosity_error()
    if variant == "forward":
        print(json.dumps(forward(recipe)))
        return
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else len(recipe["rates"])
    print(json.dumps(trl(recipe, Path(sys.argv[3]), variant.removeprefix("trl-"), steps)))


if __name__ == "__main__":
    main()

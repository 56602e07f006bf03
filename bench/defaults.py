"""Effect of the default epochs and learning rates of several trainers on a real base, with four small data sets.

    python -m bench.defaults BASE_FOLDER WORK_FOLDER [--rows 80] [--only SET:RECIPE ...]

Each run uses the product's trainer with a different recipe and prints one line of JSON: loss and exact answers on
held-out rows, and how many of the general questions that the base answers correctly the tuned model still answers.
Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from bench.small_sets import GENERAL, SETS, write_rows, write_set
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.contract.auto_hyperparameters import auto_exec
from shared.contract.contracts import FineTuneContract
from shared.contract.plan import DataFile, TrainingInputs, TrainingRun, plan_finetune

HELD_OUT = 24
SAMPLES = 12
RECIPES: dict[str, dict[str, Any]] = {
    # SFTConfig of TRL 1.16, on the product's schedule.
    "trl": {"epochs": 3, "learning_rate": 2e-5, "batch_size": 8, "warmup_steps": 0, "weight_decay": 0.0},
    "unsloth-1": {"epochs": 1, "learning_rate": 2e-4, "batch_size": 8},
    # The values that the auto rules give for the file.
    "rule": {},
    "3-epochs": {"epochs": 3, "learning_rate": 2e-4, "batch_size": 4},
    "200-steps": {"epochs": 10, "learning_rate": 2e-4, "batch_size": 4},
    "3-epochs-replay": {"epochs": 3, "learning_rate": 2e-4, "batch_size": 4},
}


class _NeverStop:
    pause_requested = False
    cancel_requested = False


def data_file(path: Path) -> DataFile:
    """Return a JSONL file as the API describes an upload."""
    raw = path.read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    return DataFile(file_id=f"file-{path.stem}", sha256=digest, bytes=len(raw), rows=raw.count(b"\n"))


def plan_run(base: Path, folder: Path, name: str, recipe: str) -> TrainingRun:
    """Plan a recipe on a data set. Because nothing is published, the trainer itself generates and judges all answers."""
    files = {"train": folder / f"{name}.jsonl", "validation": folder / f"{name}-held-out.jsonl"}
    if recipe.endswith("replay"):
        files["replay"] = folder / "replay.jsonl"
    described = {kind: data_file(path) for kind, path in files.items()}
    data: dict[str, Any] = {f"{kind}_file": file.file_id for kind, file in described.items()}
    contract = {
        "model": {"name": base.name},
        "data": data | ({"replay_ratio": 0.25} if "replay" in files else {}),
        "adapter": {"method": "lora"},
        "quant": {"base": "none"},
        "artifact": {"publish": False},
        "exec": {"grad_accum": 1, "seq_len": 256, "checkpoint_every": 10_000, "checkpoint_minutes": 1000.0, "seed": 7}
        | (RECIPES[recipe] or auto_exec(described["train"].rows, None)),
    }
    entry = BaseModelEntry(name=base.name, source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    plan = plan_finetune(
        FineTuneContract.model_validate(contract),
        entry,
        described["train"],
        described["validation"],
        "defaults",
        replay=described.get("replay"),
    )
    return TrainingRun(plan=plan, inputs=TrainingInputs(base=str(base), **{k: str(p) for k, p in files.items()}))


def run_recipe(base: Path, folder: Path, name: str, recipe: str) -> dict[str, Any]:
    """Train, and read the run's self-evaluation."""
    from shared.model_card import evaluation_rows
    from worker.train import train
    from worker.training.self_evaluation import scores

    evaluation_rows.LEAST_SECONDS = 1e9  # every answer counts here, whatever it costs
    scores.MIN_TOKENS = scores.MAX_TOKENS  # every recipe is scored on the same rows, however short its run
    run_dir = folder / f"{name}-{recipe}"
    run_dir.mkdir(parents=True, exist_ok=True)
    began = time.process_time()
    stop: Any = _NeverStop()
    train(plan_run(base, folder, name, recipe), run_dir, None, stop)
    measured = json.loads((run_dir / "self_evaluation.json").read_text())
    answers = [sample["tuned"].split() == sample["reference"].split() for sample in measured["sample_answers"]]
    general = [general_answer["kept"] for general_answer in measured["general_answers"]]
    return {
        "set": name,
        "recipe": recipe,
        "steps": json.loads((run_dir / "run_summary.json").read_text())["global_step"],
        "base_loss": round(measured["loss"]["base"], 3),
        "held_out_loss": round(measured["loss"]["tuned"], 3),
        "exact": f"{sum(answers)}/{len(answers)}",
        "general_kept": f"{general.count(True)}/{len(general) - general.count(None)}",
        "cpu_seconds": round(time.process_time() - began),
    }


def write_replay(base: Path, path: Path) -> None:
    """Write general requests with the base's own greedy answers, whose behaviour training should preserve."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(base), AutoModelForCausalLM.from_pretrained(base)
    pairs = []
    for question in GENERAL:
        chat = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = model.generate(**ids, do_sample=False, max_new_tokens=48, pad_token_id=tokenizer.eos_token_id)
        pairs.append((question, tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)))
    write_rows(path, pairs)


def main() -> None:
    """Run each requested recipe that is not in the table of finished runs."""
    parser = argparse.ArgumentParser(prog="python -m bench.defaults", description=__doc__)
    parser.add_argument("base", type=Path, help="folder of the base model")
    parser.add_argument("folder", type=Path, help="folder for data sets and runs")
    parser.add_argument("--rows", type=int, default=80, help="training rows of each set")
    parser.add_argument(
        "--only",
        nargs="*",
        help="SET:RECIPE pairs; default: every recipe on every set, but the one with replay on expenses only",
    )
    arguments = parser.parse_args()
    os.environ["MENS_SAMPLE_ANSWERS"] = str(SAMPLES)
    default = [f"{name}:{recipe}" for name in SETS for recipe in RECIPES if "replay" not in recipe]
    folder, table = arguments.folder, arguments.folder / "runs.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    done = (
        {(run["set"], run["recipe"]) for run in map(json.loads, table.read_text().splitlines())}
        if table.exists()
        else ()
    )
    for pair in arguments.only or [*default, "expenses:3-epochs-replay"]:
        name, recipe = pair.split(":")
        if (name, recipe) in done:
            continue
        write_set(folder, name, arguments.rows, HELD_OUT)
        if recipe.endswith("replay") and not (folder / "replay.jsonl").exists():
            write_replay(arguments.base, folder / "replay.jsonl")
        line = json.dumps(run_recipe(arguments.base, folder, name, recipe))
        print(line, flush=True)
        with table.open("a") as file:
            file.write(f"{line}\n")


if __name__ == "__main__":
    main()

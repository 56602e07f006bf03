"""Makes the shared inputs of the trainers on pairs of answers: base, pairs, the product's plan, and the resulting recipe.

    python -m bench.training.pair_inputs REQUEST_JSON FOLDER

The request is an ``InputsRequest`` of ``bench/training/recipe.py``. It writes ``tiny/`` (the base, if one is made), ``train.jsonl``,
``plan.json`` and ``pairs.json``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from bench.datasets.chats import chat_mix
from bench.training.recipe import InputsRequest
from bench.training.shapes import Shape
from bench.training.training_inputs import LONGEST_MINUTES, NEVER, make_base, write_chats
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.contract.contracts import FineTuneContract
from shared.contract.plan import TrainingInputs, TrainingRun, plan_finetune, warmup_steps
from worker.training.data.prepared import Row
from worker.training.data.row_order import RowOrder
from worker.training.model.load import load_tokenizer, read_config
from worker.training.preference.data import read_preferences
from worker.training.preference.pairs import PreparedPairs
from worker.training.schedule import learning_rate

RATE = 2e-5
MADE_CHATS = 6
"""Number of chats generated per pair; two whose answers leave room for a prompt are used."""


@dataclass(frozen=True)
class PairRecipe:
    """Inputs of every trainer on pairs.

    Attributes:
        base: model folder.
        pairs: token ids (``prompt_ids``, ``chosen_ids``, ``rejected_ids``), in the order of the steps.
        rates: learning rate of each optimizer step.
        pairs_per_step: pairs of an optimizer step.
    """

    base: str
    pairs: list[dict[str, list[int]]]
    rates: list[float]
    pairs_per_step: int
    beta: float
    rank: int
    weight_decay: float
    max_grad_norm: float
    seed: int


def main() -> None:
    """Entry point."""
    fields, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    shape = Shape(**fields["base"]) if isinstance(fields["base"], dict) else None
    request = InputsRequest(**fields | ({"base": shape} if shape else {}))
    base = folder / "tiny" if shape else Path(fields["base"])
    tokenizer = make_base(base, shape, request) if shape else AutoTokenizer.from_pretrained(base)

    def count(text: str) -> int:
        return len(tokenizer.encode(text))

    chats = chat_mix(count, MADE_CHATS * request.rows)
    short = [chat for chat in chats if count(chat["messages"][-1]["content"]) <= request.execution["seq_len"] // 2]
    run = plan_run(base, to_pairs(short[: 2 * request.rows]), folder, request)
    (folder / "plan.json").write_text(run.model_dump_json())
    (folder / "pairs.json").write_text(json.dumps(asdict(recipe_of(run, folder))))


def to_pairs(chats: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a pair for every two chats: prompt and answer of the first chat, and the answer of the second."""
    return [
        {
            "prompt": chat["messages"][:-1],
            "chosen": chat["messages"][-1:],
            "rejected": other["messages"][-1:],
        }
        for chat, other in zip(chats[::2], chats[1::2], strict=True)
    ]


def plan_run(base: Path, pairs: list[dict[str, Any]], folder: Path, request: InputsRequest) -> TrainingRun:
    """Write the pairs as a data file, and plan the product's run over it.

    Args:
        base: model folder.
        folder: folder for the file.
        request: further values of the contract.
    """
    train = write_chats(folder / "train.jsonl", pairs)
    defaults = {"epochs": 1, "grad_accum": 1, "seed": 7, "learning_rate": RATE}
    defaults |= {"checkpoint_every": NEVER, "checkpoint_minutes": LONGEST_MINUTES}
    contract = {
        "model": {"name": base.name},
        "data": {"train_file": train.file_id, "validation_split_ratio": 0.0},
        "adapter": {"rank": 16, "alpha": 32, "method": "lora"},
        "quant": {"base": "none"},
        "artifact": {"publish": False},
        "method": {"type": "dpo"},
        "exec": defaults | request.execution,
    }
    entry = BaseModelEntry(name=base.name, source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    plan = plan_finetune(FineTuneContract.model_validate(contract), entry, train, None, "bench")
    return TrainingRun(
        plan=plan, inputs=TrainingInputs(base=str(base), train=str(folder / "train.jsonl"), validation=None)
    )


def recipe_of(run: TrainingRun, cache: Path) -> PairRecipe:
    """Return the recipe of a planned run: its pairs as the product encodes them, in the product's order.

    Args:
        cache: folder for the encoded pairs.
    """
    contract, exec_, base = run.plan.contract, run.plan.contract.exec, Path(run.inputs.base)
    data = read_preferences(run, load_tokenizer(base), read_config(base).vocab, cache, PreparedPairs)
    order = RowOrder(contract, data.difficulties)
    warmup = warmup_steps(exec_.warmup_steps, order.total_steps)
    pairs = [data.row(number) for step in order.after(0) for number in step.rows]
    return PairRecipe(
        base=run.inputs.base,
        pairs=[
            dict(zip(("prompt_ids", "chosen_ids"), divided(pair.chosen), strict=True))
            | {"rejected_ids": divided(pair.rejected)[1]}
            for pair in pairs
        ],
        rates=[
            learning_rate(step, order.total_steps, exec_.learning_rate, warmup) for step in range(order.total_steps)
        ],
        pairs_per_step=exec_.batch_size,
        beta=contract.preference.strength,
        rank=contract.adapter.rank,
        weight_decay=exec_.weight_decay,
        max_grad_norm=exec_.max_grad_norm,
        seed=exec_.seed,
    )


def divided(row: Row) -> tuple[list[int], list[int]]:
    """Return the prompt and the scored tokens of a chat; text that the template adds after them is left out."""
    scored = row.weights.nonzero()[0]
    return row.ids[: scored[0]].tolist(), row.ids[scored[0] : scored[-1] + 1].tolist()


if __name__ == "__main__":
    main()

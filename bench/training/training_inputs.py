"""Makes the shared inputs of the trainers in one comparison: base, chats, the product's plan, and the resulting recipe.

    python -m bench.training.training_inputs REQUEST_JSON FOLDER

The request is an ``InputsRequest`` of ``bench/training/recipe.py``. It writes ``tiny/`` (the base, if one is made),
``train.jsonl``, ``held_out.jsonl``, ``plan.json`` and ``recipe.json``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from bench.datasets.chats import chat_mix, corpus
from bench.training.recipe import EncodedRow, InputsRequest, Recipe
from bench.training.shapes import Shape
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.contract.contracts import FineTuneContract
from shared.contract.plan import DataFile, TrainingInputs, TrainingRun, plan_finetune, warmup_steps
from worker import pretrain
from worker.training.data.dataset import read_data
from worker.training.data.prepare import Row
from worker.training.data.row_order import RowOrder
from worker.training.model.load import load_tokenizer, read_config
from worker.training.schedule import learning_rate

MAX_POSITIONS = 40_960
TOKENIZER_VOCABULARY = 4096
"""Largest vocabulary; the corpus has few words, so a larger embedding would have unused rows."""
LONGEST_MINUTES = 1440
NEVER = 1_000_000
"""Checkpoint interval that a run of this size never reaches, because speed is measured without checkpoints."""
Chat = dict[str, Any]


def main() -> None:
    """Entry point."""
    fields, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    shape = Shape(**fields["base"]) if isinstance(fields["base"], dict) else None
    request = InputsRequest(**fields | ({"base": shape} if shape else {}))
    base = folder / "tiny" if shape else Path(fields["base"])
    tokenizer = make_base(base, shape, request) if shape else AutoTokenizer.from_pretrained(base)
    chats = chat_mix(lambda text: len(tokenizer.encode(text)), request.rows + request.held_out_rows)
    run = plan_run(base, chats[: request.rows], chats[request.rows :], folder, request)
    (folder / "plan.json").write_text(run.model_dump_json())
    recipe_of(run, folder, request).write(folder / "recipe.json")


def make_base(folder: Path, shape: Shape, request: InputsRequest) -> PreTrainedTokenizerFast:
    """Write a Qwen3 base of that shape, and return its tokenizer.

    A pretrained base is made as by `mens base build`, until it has roughly learned its vocabulary; its embedding has as
    many rows as its tokenizer has tokens.
    """
    torch.manual_seed(0)
    pretrained = request.pretraining_steps > 0
    pretrain.VOCAB_SIZE = min(shape.vocabulary, TOKENIZER_VOCABULARY)
    documents = [{"text": text} for text in corpus()]
    tokenizer = pretrain.train_tokenizer(documents)
    tokenizer.model_max_length = MAX_POSITIONS
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=len(tokenizer) if pretrained else shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **({"initializer_range": pretrain.INITIALIZER_RANGE} if pretrained else {}),
    )
    with torch.device(request.device):
        dtype = torch.bfloat16 if request.device == "cuda" else torch.float32
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if pretrained:
        pretrain.pretrain(model, pretrain.encode_corpus(documents, tokenizer), request.pretraining_steps, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def plan_run(base: Path, chats: list[Chat], held_out: list[Chat], folder: Path, request: InputsRequest) -> TrainingRun:
    """Write the chats as data files, and plan the product's run over them.

    Args:
        base: model folder.
        held_out: rows of the validation file. They are required because a split would also change the rows' order.
        folder: folder for the files.
        request: further values of the contract.
    """
    train, validation = write_chats(folder / "train.jsonl", chats), write_chats(folder / "held_out.jsonl", held_out)
    defaults = {"epochs": 1, "seq_len": 2048, "batch_size": 8, "grad_accum": 2, "seed": 7}
    defaults |= {"checkpoint_every": NEVER, "checkpoint_minutes": LONGEST_MINUTES}
    contract = {
        "model": {"name": base.name},
        "data": {"train_file": train.file_id, "validation_file": validation.file_id},
        "adapter": {"rank": 16, "alpha": 32, "method": "qlora" if request.quant == "nf4" else "lora"},
        "quant": {"base": request.quant},
        "artifact": {"publish": False},
        "exec": defaults | request.execution,
    }
    entry = BaseModelEntry(name=base.name, source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    plan = plan_finetune(FineTuneContract.model_validate(contract), entry, train, validation, "bench")
    paths = [str(folder / name) for name in ("train.jsonl", "held_out.jsonl")]
    return TrainingRun(plan=plan, inputs=TrainingInputs(base=str(base), train=paths[0], validation=paths[1]))


def write_chats(path: Path, chats: list[Chat]) -> DataFile:
    """Write a JSONL file, and describe it as the API describes an upload."""
    raw = "".join(json.dumps(chat, ensure_ascii=False) + "\n" for chat in chats).encode()
    path.write_bytes(raw)
    digest = hashlib.sha256(raw).hexdigest()
    return DataFile(file_id=f"file-{path.stem}", sha256=digest, bytes=len(raw), rows=len(chats))


def recipe_of(run: TrainingRun, cache: Path, request: InputsRequest) -> Recipe:
    """Return the recipe of a planned run: its rows as the product encodes them, in the product's order.

    Args:
        cache: folder for the encoded rows.
        request: names the device, which is not in the contract.
    """
    contract, exec_, base = run.plan.contract, run.plan.contract.exec, Path(run.inputs.base)
    data = read_data(run, load_tokenizer(base), read_config(base).vocab, cache)
    order = RowOrder(contract, data.difficulties)
    total = order.total_steps
    warmup = warmup_steps(exec_.warmup_steps, total)
    return Recipe(
        base=run.inputs.base,
        rows=[encoded(data.row(number)) for step in order.after(0) for number in step.rows],
        held_out=[encoded(row) for row in data.validation],
        rates=[learning_rate(step, total, exec_.learning_rate, warmup) for step in range(total)],
        rows_per_batch=exec_.batch_size,
        grad_accum=exec_.grad_accum,
        seq_len=exec_.seq_len,
        rank=contract.adapter.rank,
        weight_decay=exec_.weight_decay,
        max_grad_norm=exec_.max_grad_norm,
        seed=exec_.seed,
        device=request.device,
        quant=request.quant,
    )


def encoded(row: Row) -> EncodedRow:
    """Return a row in the format that other trainers accept."""
    ids = row.ids.tolist()
    supervised = (row.weights > 0).tolist()
    return {
        "input_ids": ids,
        "labels": [id_ if is_target else -100 for id_, is_target in zip(ids, supervised, strict=True)],
    }


if __name__ == "__main__":
    main()

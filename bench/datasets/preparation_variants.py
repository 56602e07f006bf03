"""One variant of ``bench/datasets/preparation.py`` in a separate process: prints its measurements as one line of JSON.

    python -m bench.datasets.preparation_variants VARIANT CHATS BASE OUT

Imports and start are not counted; each variant states what is counted.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.peak_memory import peak_bytes

CAPACITY = 8192
"""Tokens per bin and maximum row length: no chat is longer, so no variant truncates."""
VOCAB_ROWS = 1 << 20
COMPARED_ROWS = 50_000
"""Number of rows that are compared; a longer file only serves to measure memory."""
Facts = dict[str, Any]


def mens(path: Path, base: Path, out: Path, *, fast: bool) -> Facts:
    """Prepare with the product. Counted: everything from opening the file to bins and rows on disk, including loading
    the tokenizer and checking every line.
    """
    from shared.contract.contracts import FineTuneContract
    from shared.hashing import digest_file
    from shared.tokenization.tokenizer import Tokenizer
    from worker.training.data import prepare as preparation
    from worker.training.data.packing import efficiency, pack

    # The small file of a smoke run would be encoded without fastokens, because loading it costs more than it saves.
    preparation.FAST_BYTES = 0
    if not fast:
        sys.modules["fastokens"] = None  # type: ignore[assignment]
    contract = FineTuneContract.model_validate({"data": {"train_file": "chats"}, "exec": {"seq_len": CAPACITY}})
    # Not counted: the API has hashed a file when it was uploaded.
    digest = digest_file(path)
    with tempfile.TemporaryDirectory(dir=out) as cache:
        before, start = peak_bytes(), time.perf_counter()
        rows = preparation.prepare(path, digest, Tokenizer.load(base), contract, Path(cache), VOCAB_ROWS)
        bins = pack(rows.lengths.tolist(), CAPACITY)
        seconds, peak = time.perf_counter() - start, peak_bytes()
        if len(rows) <= COMPARED_ROWS:
            ids, weights = ([row.ids for row in rows], [row.weights for row in rows])
            save(out / f"{rows.report.tokenizer}.npz", np.concatenate(ids), np.concatenate(weights) > 0, rows.lengths)
        return {
            "seconds": seconds,
            "rows": len(rows),
            "tokens": rows.report.tokens,
            "packing": efficiency(rows.lengths.tolist(), bins, CAPACITY),
            "library": rows.report.tokenizer,
            "peak_bytes": peak,
            "grown_bytes": peak - before,
        }


def trl(path: Path, base: Path, out: Path, *, processes: int, packing: bool) -> Facts:
    """Prepare with TRL. Counted: `SFTTrainer`'s preparation of a data set that is already loaded; loading it is
    reported separately.
    """
    import torch
    from datasets import disable_progress_bars, load_dataset
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    class Timed(SFTTrainer):
        def _prepare_dataset(self, *arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            self.prepared = super()._prepare_dataset(*arguments, **named)
            self.seconds = time.perf_counter() - start
            return self.prepared

    torch.set_num_threads(1)
    disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(base)
    # SFTTrainer wants a model, though preparing data needs none.
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape))
    with tempfile.TemporaryDirectory(dir=out) as cache:
        start = time.perf_counter()
        chats = load_dataset("json", data_files=str(path), split="train", cache_dir=cache)
        reading = time.perf_counter() - start
        config = SFTConfig(
            output_dir=cache,
            use_cpu=True,
            bf16=False,
            report_to=[],
            assistant_only_loss=True,
            max_length=CAPACITY,
            packing=packing,
            packing_strategy="bfd",
            dataset_num_proc=processes if processes > 1 else None,
        )
        trainer = Timed(model=model, args=config, train_dataset=chats, processing_class=tokenizer)
        rows = trainer.prepared.with_format("numpy")
        if not packing:
            ids, labels = list(rows["input_ids"]), list(rows["labels"])
            lengths = np.array([len(ids_of_row) for ids_of_row in ids])
            save(out / "trl.npz", np.concatenate(ids), np.concatenate(labels) != -100, lengths)
        tokens = sum(len(ids_of_row) for ids_of_row in rows["input_ids"])
        filled = tokens / (len(rows) * CAPACITY)
        return {
            "seconds": trainer.seconds,
            "reading": reading,
            "tokens": tokens,
            "packing": filled if packing else None,
        }


def save(path: Path, ids: Any, supervised: Any, lengths: Any) -> None:
    """Save the result for every row. The first token is never a target, even if a trainer labels it."""
    supervised = np.array(supervised)
    supervised[np.cumsum(lengths) - lengths] = False
    np.savez(path, ids=np.asarray(ids, np.uint32), supervised=supervised, lengths=np.asarray(lengths, np.int64))


def main(variant: str, *paths: Path) -> None:
    """Entry point."""
    variants: dict[str, Callable[..., Facts]] = {
        "mens": partial(mens, fast=True),
        "mens-tokenizers": partial(mens, fast=False),
        "trl-1": partial(trl, processes=1, packing=True),
        "trl-2": partial(trl, processes=2, packing=True),
        "trl-rows": partial(trl, processes=2, packing=False),
    }
    print(json.dumps(variants[variant](*paths)))


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:5]))

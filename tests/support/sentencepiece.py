"""A tokenizer like those that older Llama and Mistral models were converted from SentencePiece with: a mark before each
word, one before the text's beginning, and bytes as tokens for characters that the vocabulary lacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

from shared.base_models.families import Family
from tests.support.template_families import TEMPLATES

MARK = "▁"
UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
VOCAB_SIZE, MAX_POSITIONS = 2048, 1024
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def train_sentencepiece(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train such a tokenizer; its first tokens are `<unk>`, `<s>`, `</s>` and the bytes, as in Llama's."""
    trained = Tokenizer(models.BPE(unk_token=UNKNOWN, byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
    trained.normalizer = normalizers.Sequence(steps)
    special = [UNKNOWN, BEGIN, END]
    # No character of the texts is left out, but any other one is.
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special + _BYTES, show_progress=False)
    # Without a pre-tokenizer a text is one word, and the merges of long texts are slow to count: one word at a time.
    trained.train_from_iterator((word for text in texts for word in text.split()), trainer)
    made: dict[str, Any] = json.loads(trained.to_str())
    made["added_tokens"] = [token for token in made["added_tokens"] if token["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(made))
    parts = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.post_processor = processors.TemplateProcessing(f"{BEGIN} $A", None, [(BEGIN, special.index(BEGIN))])
    return tokenizer


def build_base(out: Path, corpus: Path, family: Family, steps: int, changes: Mapping[str, Any]) -> None:
    """Pretrain a tiny base, as `worker.pretrain` does, with this tokenizer and Llama 2's chat template."""
    import torch
    from transformers import PreTrainedTokenizerFast

    from worker.pretrain import new_model, pretrain, read_corpus, save_base

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = read_corpus(corpus)
    chats = [[{"content": row["text"]}] if "text" in row else row["messages"] for row in rows]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_sentencepiece(turn["content"] for chat in chats for turn in chat),
        unk_token=UNKNOWN,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        chat_template=(TEMPLATES / "llama2.jinja").read_text(),
        model_max_length=MAX_POSITIONS,
    )
    texts = [
        f"{BEGIN}{row['text']}{END}"
        if "text" in row
        else tokenizer.apply_chat_template(row["messages"], tokenize=False)
        for row in rows
    ]
    documents = [tokenizer.encode(text, add_special_tokens=False)[:MAX_POSITIONS] for text in texts]
    model = new_model(family, tokenizer, changes)
    pretrain(model, documents, steps, seed=0)
    save_base(out, model, tokenizer)

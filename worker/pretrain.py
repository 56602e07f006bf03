"""Pretrains a tiny chat base model from scratch, in seconds, on one CPU thread.

    python -m worker.pretrain OUT_DIR [--corpus FILE] [--family NAME] [--composite] [--steps N] [--seed 0]

A LoRA adapter moves the hidden states of a frozen model; it cannot teach the frozen embedding what a word means. So
even the smallest base must be pretrained on every word that an adapter will later have to produce. The result is an
ordinary Hugging Face model folder: transformers, peft and vLLM read it like any other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer
from transformers.utils.logging import disable_progress_bar

from shared.base_models.families import SPECS, TINY_FAMILIES, Family
from shared.durable_files import rename_durably
from worker.training.schedule import learning_rate

Document = list[int]

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCAB_SIZE, MAX_POSITIONS = 2048, 1024
OWN_TOKENIZERS: Mapping[Family, type[PreTrainedTokenizerFast]] = {
    Family.QWEN2: Qwen2Tokenizer,
    Family.QWEN3_5: Qwen3_5Tokenizer,
}
"""Families whose input transformers (and therefore vLLM) splits by its own rules, whatever tokenizer.json says."""
BATCH_DOCUMENTS = 16
PEAK_LEARNING_RATE = 3e-3
WARMUP_FRACTION = 0.05
# The usual 0.02 suits wide models; 128 units would start with logits so flat that a hundred steps are lost.
INITIALIZER_RANGE = 0.12
# Default temperature of requests. At 1, such a small model picks a wrong word every few words.
TEMPERATURE = 0.2
# The target that torch's cross-entropy ignores by default.
IGNORED_LABEL = -100

# `generation` marks what the assistant says, its end token included: these tokens, and no others, become labels.
# Tool calls are written as Hermes and Qwen models write them, which is the form that vLLM's parser `hermes` reads.
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>tools\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}
{{- raise_exception('a turn is by system, user, assistant or tool, not by ' + message['role']) }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{- message['content'] }}
{%- for call in message['tool_calls'] or [] %}
{{- '\\n' if message['content'] or not loop.first else '' }}
{{- '<tool_call>\\n{"name": ' + call['function']['name'] | tojson }}
{{- ', "arguments": ' + call['function']['arguments'] | tojson + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>' }}{% endgeneration %}
{%- else %}{{- message['content'] + '<|im_end|>' }}{% endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


def build_base(
    out: Path,
    corpus: Path,
    family: Family = Family.QWEN3,
    steps: int = 250,
    seed: int = 0,
    *,
    composite: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> None:
    """Write the model folder `out`, which must not exist yet; it appears complete or not at all.

    The same corpus, family, steps and seed give the same bytes on the same machine with the same library versions.

    Args:
        composite: whether the model has a vision part, like this family's models on the hub.
        changes: further keys of the config.
    """
    disable_progress_bar()  # transformers' bar, for only three tensors
    if out.exists():
        raise FileExistsError(f"{out} already exists; a base model is never overwritten")
    torch.set_num_threads(1)  # another order of sums gives other bytes; and tiny matrices are slower on two threads
    torch.manual_seed(seed)
    rows = read_corpus(corpus)
    tokenizer = train_tokenizer(rows, family)
    model = new_model(family, tokenizer, changes or {})
    pretrain(model, encode_corpus(rows, tokenizer), steps, seed)
    save_base(out, with_vision_part(family, model) if composite else model, tokenizer)


def read_corpus(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL corpus, each `{"text": str}` or `{"messages": [{"role", "content"}, …]}`."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_bytes().splitlines()]
    for number, row in enumerate(rows, start=1):
        if ("text" in row) == ("messages" in row):
            raise ValueError(f"{path.name}, line {number}: a row must have either `text` or `messages`")
    return rows


def train_tokenizer(rows: Sequence[dict[str, Any]], family: Family = Family.QWEN3) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of at most VOCAB_SIZE tokens on `rows`; every string survives encode and decode, except
    for Unicode normalisation in a family that applies it.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if family in OWN_TOKENIZERS:
        own = OWN_TOKENIZERS[family]().backend_tokenizer
        bpe.normalizer, bpe.pre_tokenizer = own.normalizer, own.pre_tokenizer
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((text for row in rows for text in _texts(row)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
    )


def _texts(row: dict[str, Any]) -> list[str]:
    if "text" in row:
        return [row["text"]]
    return [f"{message['role']}\n{message['content']}" for message in row["messages"]]


def encode_corpus(rows: Sequence[dict[str, Any]], tokenizer: PreTrainedTokenizerFast) -> list[Document]:
    """Return one list of token ids per row, at most MAX_POSITIONS long; each is a separate sequence."""
    render = tokenizer.apply_chat_template
    texts = [row["text"] + END_OF_TEXT if "text" in row else render(row["messages"], tokenize=False) for row in rows]
    return [tokenizer.encode(text)[:MAX_POSITIONS] for text in texts]


def new_model(family: Family, tokenizer: PreTrainedTokenizerFast, changes: Mapping[str, Any]) -> PreTrainedModel:
    """Return a randomly initialised fp32 causal language model of about one million parameters.

    Args:
        changes: config keys that override the family's own.
    """
    spec = SPECS[family]
    assert spec.tiny_base is not None, f"tiny bases of {family} are not supported"
    shape = {
        **spec.tiny_base,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": INITIALIZER_RANGE,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    # The last of a family's model types is the text-only one.
    config = AutoConfig.for_model(spec.model_types[-1], **shape | dict(changes))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def with_vision_part(family: Family, language: PreTrainedModel) -> PreTrainedModel:
    """Return the composite model whose language part has the weights of `language`; its vision part is random and tiny."""
    spec = SPECS[family]
    assert spec.composite, f"composite models of {family} are not supported"
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "num_position_embeddings": 16}
    config = AutoConfig.for_model(
        spec.model_types[0],
        text_config=language.config.to_dict(),
        vision_config=vision | {"out_hidden_size": language.config.hidden_size},
        tie_word_embeddings=language.config.tie_word_embeddings,
    )
    model: PreTrainedModel = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    model.get_decoder().load_state_dict(language.get_decoder().state_dict())
    if not language.config.tie_word_embeddings:
        model.get_output_embeddings().load_state_dict(language.get_output_embeddings().state_dict())
    return model


def pretrain(model: PreTrainedModel, documents: Sequence[Document], steps: int, seed: int) -> None:
    """Train every weight of `model` for `steps` optimizer steps on next-token prediction over `documents`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    batches = _batches(documents, random.Random(seed))
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, PEAK_LEARNING_RATE, round(WARMUP_FRACTION * steps))
        input_ids, labels = next(batches)
        loss = model(input_ids=input_ids, labels=labels, use_cache=False).loss
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 50 == 0 or step + 1 == steps:
            print(f"step {step + 1}/{steps} loss {loss.item():.2f}", flush=True)
    model.eval()


def _batches(documents: Sequence[Document], rng: random.Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (input ids, labels), both [batch, time], indefinitely; documents of similar length share a batch."""
    while True:
        # The jitter changes the groups from epoch to epoch, at the cost of a little padding.
        order = sorted(documents, key=lambda document: len(document) + rng.uniform(0, 8))
        groups = [order[i : i + BATCH_DOCUMENTS] for i in range(0, len(order), BATCH_DOCUMENTS)]
        rng.shuffle(groups)
        for group in groups:
            # Right padding needs no attention mask: under causal attention no real token sees what follows it.
            rows = [torch.tensor(document) for document in group]
            yield pad_sequence(rows, True), pad_sequence(rows, True, padding_value=IGNORED_LABEL)


def save_base(out: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write to a temporary name and rename, so that `out` is never an incomplete model."""
    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.generation_config = GenerationConfig(
        eos_token_id=ends, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=TEMPERATURE
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        for file in partial.iterdir():
            file.chmod(0o644)  # safetensors writes 0600, and the server may run as a different user from the worker
        rename_durably(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a tiny chat base model.")
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="folder to create")
    parser.add_argument("--corpus", type=Path, default=Path("examples/base_corpus.jsonl"))
    parser.add_argument("--family", choices=TINY_FAMILIES, default=Family.QWEN3, type=Family)
    parser.add_argument("--composite", action="store_true", help="with a vision part, as the hub has Qwen3.5")
    parser.add_argument("--steps", type=int, default=250, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=0)
    build_base(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()

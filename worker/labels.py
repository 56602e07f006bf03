"""From chat rows to token ids and labels: the assistant's tokens and its end token are learnt, nothing else is.

A template with ``{% generation %}`` marks says itself which tokens are the assistant's. For one without marks the last
assistant turn is found by character offsets: the text rendered up to the generation prompt is the prompt, what follows
is the answer. Truncation drops the beginning, and labels move with the tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from transformers import PreTrainedTokenizerBase

from shared.dataset import Message, TrainingRow
from shared.errors import Code, InvalidRequest

IGNORED = -100
"""Label of a position that carries no loss (PyTorch's default ``ignore_index``)."""


@dataclass(frozen=True, slots=True)
class Example:
    """One encoded row.

    Attributes:
        line: the row's line number in its file.
        ids: token ids, at most ``seq_len``.
        labels: same length; ``labels[i]`` is ``ids[i]`` where it is learnt, else ``IGNORED``. The shift by one between
            input and target is the loss's business.
        truncated: tokens cut off at the beginning.
    """

    line: int
    ids: list[int]
    labels: list[int]
    truncated: int

    @property
    def targets(self) -> int:
        """Positions that carry loss: the first token has no position before it that could predict it."""
        return sum(label != IGNORED for label in self.labels[1:])


def encode_row(tokenizer: PreTrainedTokenizerBase, row: TrainingRow, seq_len: int, last_k: int = 0) -> Example:
    """Encode one row.

    Args:
        tokenizer: the base model's, with its chat template.
        row: a valid row.
        seq_len: tokens kept, counted from the end.
        last_k: learn only the last K of the supervised tokens; 0 learns all.

    Raises:
        InvalidRequest: ``TEMPLATE_UNSUPPORTED``: the template does not show where the answer begins.
    """
    messages = [_plain(message) for message in row.messages]
    if _has_generation_marks(tokenizer):
        ids, mask = _encode_marked(tokenizer, messages)
    else:
        ids, mask = _encode_last_turn(tokenizer, messages, row.line)
    mask = _with_end_tokens(ids, mask, tokenizer.eos_token_id)
    labels = _keep_last([id_ if learnt else IGNORED for id_, learnt in zip(ids, mask, strict=True)], last_k)
    return Example(row.line, ids[-seq_len:], labels[-seq_len:], max(0, len(ids) - seq_len))


def encode_rows(
    tokenizer: PreTrainedTokenizerBase, rows: Iterable[TrainingRow], seq_len: int, last_k: int
) -> tuple[list[Example], list[int]]:
    """Encode rows; those with nothing to learn are left out.

    Returns:
        the examples, and the line numbers of the rows left out.
    """
    examples, skipped = [], []
    for row in rows:
        example = encode_row(tokenizer, row, seq_len, last_k)
        if example.targets:
            examples.append(example)
        else:
            skipped.append(row.line)
    return examples, skipped


def _plain(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(message)
    return {key: value for key, value in fields.items() if value is not None and key != "weight"}


def _has_generation_marks(tokenizer: PreTrainedTokenizerBase) -> bool:
    return "{% generation %}" in _template(tokenizer).replace("{%-", "{%").replace("-%}", "%}")


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    template = tokenizer.chat_template
    if not isinstance(template, str):
        raise InvalidRequest(
            Code.TEMPLATE_UNSUPPORTED,
            "The base model's tokenizer has no single chat template.",
            remedy="Add a chat_template.jinja to the model folder and register the base again.",
            param="model.hf_repo",
        )
    return template


def _encode_marked(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]]) -> tuple[list[int], list[bool]]:
    encoded = tokenizer.apply_chat_template(
        messages,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        tokenizer_kwargs={"return_offsets_mapping": True},
    )
    mask, offsets = [bool(flag) for flag in encoded["assistant_masks"]], encoded["offset_mapping"]
    for index in range(1, len(mask)):  # of a last character of several tokens, transformers marks the first one only
        mask[index] = mask[index] or (mask[index - 1] and offsets[index] == offsets[index - 1])
    return list(encoded["input_ids"]), mask


def _encode_last_turn(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], line: int
) -> tuple[list[int], list[bool]]:
    prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    if not text.startswith(prompt):
        raise InvalidRequest(
            Code.TEMPLATE_UNSUPPORTED,
            f"The chat template renders line {line} so that its prompt is not the beginning of the whole chat.",
            remedy="Use a template with {% generation %} marks.",
            param="model.hf_repo",
        )
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    answer = text[len(prompt) :].rstrip()
    mask = [start >= len(prompt) and end <= len(prompt) + len(answer) for start, end in encoded["offset_mapping"]]
    return list(encoded["input_ids"]), mask


def _with_end_tokens(ids: list[int], mask: list[bool], end_token: int) -> list[bool]:
    """Learn an end token that directly follows learnt tokens: a model that never sees it never stops."""
    before = [False, *mask[:-1]]
    return [learnt or (id_ == end_token and prior) for id_, learnt, prior in zip(ids, mask, before, strict=True)]


def _keep_last(labels: list[int], last_k: int) -> list[int]:
    if not last_k:
        return labels
    learnt = [index for index, label in enumerate(labels) if label != IGNORED]
    return [label if index in set(learnt[-last_k:]) else IGNORED for index, label in enumerate(labels)]


def count_lines(skipped: list[int], shown: int = 10) -> str:
    """Line numbers for a message, capped."""
    more = f" and {len(skipped) - shown} more" if len(skipped) > shown else ""
    return ", ".join(str(line) for line in itertools.islice(skipped, shown)) + more

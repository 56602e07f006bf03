"""End tokens that a base's config files do not name although its chat template ends turns with them.

Such bases are common: a pretrained base with the chat template of its tuned sibling, or a fine-tune whose author
changed one file. Training teaches the template's token. A program that reads only the config files never stops at it,
and continues with invented turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest
from shared.tokenization.tokenizer import Tokenizer


def end_token_note(tokenizer: Tokenizer) -> str | None:
    """Return a note for the person who adds or tunes the base; None if config files and template agree."""
    if tokenizer.end_ids == tokenizer.configured_ends:
        return None
    named = ", ".join(end_token_texts(tokenizer, tokenizer.configured_ends)) or "no end token"
    return (
        f"The base's chat template ends turns with {tokenizer.end_token}, and its config files name {named}. Mens trains and stops at"
        f" both, and merged models name both. Another program that serves the base's own files needs {tokenizer.end_token} as a stop token."
    )


def folder_end_token_note(folder: Path) -> str | None:
    """Return the note of a model folder; None if it has no usable tokenizer or chat template, which others report."""
    try:
        return end_token_note(Tokenizer.load(folder))
    except InvalidRequest:
        return None


def end_token_texts(tokenizer: Tokenizer, ids: frozenset[int]) -> list[str]:
    """Return the tokens as the vocabulary writes them, in the order of their ids; unknown ids are left out."""
    texts = (tokenizer.backend.id_to_token(token) for token in sorted(ids))
    return [text for text in texts if text]


def with_end_tokens(generation_config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a generation config that names every end token; unchanged if the base's config files name them all."""
    if tokenizer.end_ids == tokenizer.configured_ends:
        return dict(generation_config)
    return {**generation_config, "eos_token_id": sorted(tokenizer.end_ids)}

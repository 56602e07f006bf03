"""Flags by which rows and turns of other programs say whether to train on them."""

from __future__ import annotations

from typing import Any

FLAGS = ("train", "training", "trainable", "loss")
"""Keys by which a turn or a row says whether to train on it."""
ROW_FLAGS = ("label", "weight", *FLAGS)
"""The same for a row, with KTO's ``label``."""
_TEXTS = {"true": True, "false": False, "1": True, "0": False}


def flag_of(value: Any) -> bool | None:
    """Return the value of a flag, also of one that a table keeps as a number or a string; None for any other value."""
    if isinstance(value, str):
        return _TEXTS.get(value.strip().lower())
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def is_excluded(name: str, value: Any) -> bool:
    """Return whether a row's flag says not to train on the row; a number may also be a class, or a measured loss."""
    is_word = isinstance(value, bool) or (isinstance(value, str) and value.strip() != "0")
    return flag_of(value) is False and (is_word or name not in ("label", "loss"))

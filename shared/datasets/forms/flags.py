"""Flags by which rows and turns of other programs say whether to train on them."""

from __future__ import annotations

from typing import Any

MASKS = ("mask", "masked")
"""Keys with the opposite meaning: masked turns are not trained on."""
FLAGS = ("train", "training", "trainable", "loss", "loss_scale", "loss_mask", *MASKS)
"""Keys by which a turn or a row says whether to train on it."""
ROW_FLAGS = ("label", "weight", *FLAGS)
"""The same for a row, with KTO's ``label``."""
_TEXTS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def flag_of(value: Any) -> bool | None:
    """Return the value of a flag, also of one that a table keeps as a number or a string; None for any other value."""
    if isinstance(value, str):
        return _TEXTS.get(value.strip().lower())
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def is_learnt(name: str, value: Any) -> bool | None:
    """Return whether a flag says to train on its turn or row; None if its value is not one of a flag."""
    flag = flag_of(value)
    return flag if flag is None or name not in MASKS else not flag


def is_excluded(name: str, value: Any) -> bool:
    """Return whether a row's flag says not to train on the row; a number may also be a class, or a measured loss."""
    is_word = isinstance(value, bool) or (isinstance(value, str) and value.strip() != "0")
    return is_learnt(name, value) is False and (is_word or name not in ("label", "loss"))

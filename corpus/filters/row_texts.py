"""Read and replace the texts of a row that a person or a model wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corpus.filters.rules import NEVER_CHANGED


def texts_of(value: Any) -> list[str]:
    """Return the strings of a JSON value, depth first, except those under the keys of :data:`rules.NEVER_CHANGED`."""
    if isinstance(value, str):
        return [value]
    items: list[Any] = value if isinstance(value, list) else []
    if isinstance(value, dict):
        items = [item for name, item in value.items() if name not in NEVER_CHANGED]
    texts: list[str] = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
        else:
            texts += texts_of(item)
    return texts


def with_texts(value: Any, texts: Iterator[str]) -> Any:
    """Return a JSON value with its strings replaced by the given ones, in the order of :func:`texts_of`."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, list):
        return [with_texts(item, texts) for item in value]
    if isinstance(value, dict):
        return {name: item if name in NEVER_CHANGED else with_texts(item, texts) for name, item in value.items()}
    return value

"""Read and replace the texts of a row that a person or a model wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corpus.filters.rules import NEVER_CHANGED


def texts_of(value: Any) -> list[str]:
    """Return the strings of a JSON value, depth first, except those under the keys of :data:`rules.NEVER_CHANGED`."""
    texts: list[str] = []
    _add_texts(value, texts)
    return texts


def _add_texts(value: Any, texts: list[str]) -> None:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, list):
        for item in value:
            _add_texts(item, texts)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in NEVER_CHANGED:
                _add_texts(item, texts)


def with_texts(value: Any, texts: Iterator[str]) -> Any:
    """Return a JSON value with its strings replaced by the given ones, in the order of :func:`texts_of`."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, list):
        return [with_texts(item, texts) for item in value]
    if isinstance(value, dict):
        return {name: item if name in NEVER_CHANGED else with_texts(item, texts) for name, item in value.items()}
    return value

"""Result of a redactor for one text."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

NOTHING: Mapping[str, int] = MappingProxyType({})


class Redacted(NamedTuple):
    """A text without personal data, and the number of replacements by kind, such as ``{"EMAIL": 1}``."""

    text: str
    counts: Mapping[str, int] = NOTHING

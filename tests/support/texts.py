"""Random texts, and texts that are difficult to compare."""

from __future__ import annotations

import random

from hypothesis import strategies as st

RANDOM = random.Random(1)
WHITE_SPACE = "".join(character for character in map(chr, range(0x3100)) if character.isspace())
ALPHABET = f"aAbéÉßẞİKΣς新😀\u0131\u03c3\u200b\u0307\0{WHITE_SPACE}"
texts = st.text() | st.text(st.sampled_from(ALPHABET))


def words(count: int) -> list[str]:
    return [f"w{RANDOM.randrange(10**6)}" for _ in range(count)]


def changed(text: list[str], places: int) -> list[str]:
    copy = list(text)
    for place in RANDOM.sample(range(len(text)), places):
        copy[place] = f"other{place}"
    return copy

"""Lone surrogates: a string has one if Python's decoder produces one from it."""

from __future__ import annotations

import json
import random
import re

import pytest

from shared.lone_surrogates import has_lone_surrogate

PARTS = ["\\ud83d", "\\ude00", "\\uDBFF", "\\uDFFF", "\\u0041", "\\\\", "\\n", '\\"', "ud800", "é"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "utf-8-sig"])
def test_it_agrees_with_the_decoder(encoding: str) -> None:
    chance = random.Random(1)
    for _ in range(3000):
        text = '"' + "".join(chance.choices(PARTS, k=6)) + '"'
        is_lone = bool(re.search("[\ud800-\udfff]", json.loads(text)))
        assert has_lone_surrogate(text.encode(encoding)) == is_lone, text


@pytest.mark.parametrize("sent", [b'"\xed\xa0\x80"', b'"\xed\xbf\xbf"'])
def test_bytes_of_one_count_too(sent: bytes) -> None:
    assert has_lone_surrogate(sent)


@pytest.mark.parametrize("sent", [b"", b'"\xed\x9f\xbf \xee\x80\x80"', b"\xff\xfe\x00", b"\x00\xd8\x00"])
def test_what_is_not_json_is_left_to_the_decoder(sent: bytes) -> None:
    assert not has_lone_surrogate(sent)

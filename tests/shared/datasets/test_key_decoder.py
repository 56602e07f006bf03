"""The decoder that has learned a file's keys gives the same result as the slow one, on rows of any kind and in any
order.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.datasets.key_decoder import MAX_LEARNT_KEYS, KeyDecoder
from shared.datasets.rows import Record, RowError
from shared.datasets.written_rows import translate
from tests.support.invalid_rows import ANSWER, CALL, USER, chat, pair

Finding = tuple[Record, set[str], set[str]] | str
values = st.sampled_from([None, "", [], {}, 0, "x", [1], {"a": None}, 1e300, "null", "long text"])
keys = st.dictionaries(
    st.sampled_from(["id", "a b", "class", "é", "messages[].id", "unused_0", '"', "a\\b", "\n"]), values, max_size=3
)
older = st.sampled_from([{}, {}, {"refusal": None}, {"content": [{"type": "text", "text": "Hi"}]}, {"weight": 1}])
turns = st.builds(lambda first, more, form: first | more | form, st.sampled_from([USER, ANSWER]), keys, older)
rows = st.builds(
    lambda chat, more, name: {name: chat} | more,
    st.lists(turns, max_size=3),
    keys,
    st.sampled_from(["messages", "turns"]),
) | st.builds(lambda more: json.loads(pair()) | more, keys | st.fixed_dictionaries({"rating": st.sampled_from([1, 9])}))


def finding(translate: Any, line: bytes) -> Finding:
    try:
        found = translate(line)
    except (RowError, msgspec.DecodeError) as error:
        return str(error)
    return found.record, found.unused_keys, found.conversions


@pytest.mark.exhaustive
@given(st.lists(rows, min_size=1, max_size=8))
@settings(max_examples=400)
def test_it_finds_what_the_slow_decoder_finds(file: list[dict[str, Any]]) -> None:
    decoder = KeyDecoder()
    for row in file:
        line = json.dumps(row).encode()
        assert finding(decoder.translate, line) == finding(translate, line)


def test_known_keys_take_one_pass(monkeypatch: Any) -> None:
    decoder, line = KeyDecoder(), chat(USER | {"id": 1}, ANSWER | {"tool_calls": [CALL]}, source="web")
    first = finding(decoder.translate, line)
    monkeypatch.setattr("shared.datasets.key_decoder.translate", lambda _: 1 / 0)
    assert finding(decoder.translate, line) == first


def test_a_file_with_endless_keys_is_still_read() -> None:
    decoder = KeyDecoder()
    for number in range(MAX_LEARNT_KEYS * 3):
        line = pair(**{f"key {number}": 1})
        assert decoder.translate(line).unused_keys == {f"key {number}"}

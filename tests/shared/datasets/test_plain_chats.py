"""Blocks of plain chats give the same result as their lines read one by one, as they are if the reader has an observer."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.contract.choices import DataMode
from shared.datasets import plain_chats
from shared.datasets.conversation_text import written, written_together
from shared.datasets.dataset_report import DatasetReport
from shared.datasets.fingerprints import BEGIN, fingerprints, joined_fingerprints, places
from shared.datasets.key_decoder import KeyDecoder
from shared.datasets.plain_chats import PlainBlock, PlainDecoder, read_blocks
from shared.datasets.reader import READ_BYTES
from shared.datasets.report import DataReport, inspect_file
from shared.datasets.row_validation import MAX_LINE_BYTES
from shared.datasets.rows import Message


def chat(*contents: str, turn: dict[str, Any] | None = None, **others: Any) -> bytes:
    roles = ["user", "assistant"] * len(contents)
    turns = [{"role": role, "content": text} | (turn or {}) for role, text in zip(roles, contents, strict=False)]
    return json.dumps({"messages": turns} | others, ensure_ascii=False).encode() + b"\n"


PLAIN = chat("Hello", "Hi")
LABELLED = chat("Größe", "ÉTÉ  été\n", rating=3, category="docs", difficulty=None)
LINES = [
    PLAIN, LABELLED, chat("hello ", " HI"), chat("a\0b", "c"), chat("a", "b", "c", "d"), chat("数据" * 20, "模型" * 20),
    chat("a", "b", source="web"), chat("a", "b", id=0, source=""), chat("a", "b", turn={"score": 1.5, "toxic": True}),
    chat("a", "b", response_mode="code_only", zeta=1), chat("a", "b", response_mode="prose_only"),
    chat("a", "b", turn={"name": None}), chat("a", "b", turn={"weight": 0}), chat("a", "b", turn={"weight": 1}),
    chat("a", "b", syntax_spans=[{"start": 0, "end": 9, "weight": 1}]), chat("a", "b", turn={"tool_call_id": "1"}), chat("a", "b", tools=None), chat("a", "b", rating=9),
    chat("a", " "), chat("", "b"), chat("a"), chat(), b'{"prompt": "a", "response": "b"}\n', b'{"messages": null}\n',
    PLAIN[:-1] + b"\r\n", b" " + PLAIN, PLAIN[:-1] + PLAIN, PLAIN.replace(b"}, {", b"},\n{"), PLAIN.replace(b"Hi", b"\xff"),
    b'{"messages": [{}\n{}]}\n', PLAIN.replace(b'"Hi"', b'"}\n{"'), PLAIN.replace(b"Hi", b"\\ud800"), b"\n", b"{}\n", b"[]\n", b"broken\n",
]  # fmt: skip
WORDS = " ".join(f"word{number}" for number in range(60))
SIMILAR = [chat(WORDS, "yes"), chat(WORDS, "yes."), chat(WORDS.upper(), "Yes")]


def in_blocks(path: Path, **options: Any) -> tuple[DataReport, bytes]:
    quarantine = io.BytesIO()
    return inspect_file(path, mode=DataMode.LENIENT, quarantine=quarantine, **options), quarantine.getvalue()


def decoded(block: bytes, keys: KeyDecoder | None = None) -> PlainBlock | None:
    return PlainDecoder(keys or KeyDecoder()).decode(block, 1)


@pytest.fixture(scope="module", params=[1, 300, 1 << 18])
def block_bytes(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_chats, "BLOCK_BYTES", request.param)
        yield


@given(st.lists(st.sampled_from(LINES + SIMILAR), max_size=30))
@example(LINES + SIMILAR + LINES)
@example([b"\xef\xbb\xbf" + PLAIN, LABELLED])
@example([LABELLED, chat("x" * READ_BYTES, "y"), PLAIN])
@example([PLAIN, chat("x" * READ_BYTES * 2, "y")[:-1]])
@example([chat("x" * (MAX_LINE_BYTES - 80), "y"), chat("x" * (MAX_LINE_BYTES - 70), "y"), PLAIN[:-1]])
@pytest.mark.usefixtures("block_bytes")
def test_blocks_are_read_as_lines_are(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    path.write_bytes(b"".join(lines))
    (found, bad), (expected, expected_bad) = in_blocks(path), in_blocks(path, observer=lambda record, line: None)
    assert found == expected
    assert found.model_dump_json() == expected.model_dump_json()  # the order of keys too
    assert bad == expected_bad


@pytest.mark.parametrize("line", [*LINES[3:5], chat("a", "b", response_mode="code_only", task_family="t")])
def test_a_block_of_plain_chats_is_decoded_at_once(line: bytes) -> None:
    block = decoded(PLAIN + line + LABELLED)
    assert block is not None and len(block.chats) == 3
    assert block.turns == [2, line.count(b"role"), 2]


def test_so_is_one_with_keys_that_are_known() -> None:
    lines = chat("a", "b", turn={"id": 7, "note": ""}, source="web") + chat("a", "b", origin=None, turn={"id": None})
    blocks = list(read_blocks(io.BytesIO(lines), report := DatasetReport()))
    assert not isinstance(blocks[0], PlainBlock)
    assert len(list(blocks[0])) == 2
    keys = KeyDecoder()
    for line in lines.splitlines():
        keys.translate(line)
    found = decoded(PLAIN + lines, keys)
    assert found is not None
    assert found.unused == list(report.unused_keys.items()) == [("messages[].id", 1), ("source", 1)]


@pytest.mark.parametrize("line", LINES[11:])
def test_a_block_with_any_other_line_is_left_to_the_slow_path(line: bytes) -> None:
    assert decoded(PLAIN + line + PLAIN) is None


@pytest.mark.parametrize(
    "damaged", [PLAIN.replace(b"}, {", b"}\n{") + PLAIN[:-1] + PLAIN, PLAIN + b"\n" + PLAIN[:-1] + PLAIN]
)
def test_as_many_values_as_lines_are_not_enough(damaged: bytes) -> None:
    assert decoded(damaged) is None


def test_turns_are_written_together_as_one_by_one() -> None:
    contents = ["Hi", "a\nb", "", "ß", "last"]
    roles = ["user", "assistant", "tool", "system", "assistant"]
    turns = [Message(role, content) for role, content in zip(roles, contents, strict=True)]  # type: ignore[arg-type]
    apart = [written(turns[:2]), written(turns[2:3]), written(turns[3:])]
    assert written_together(roles, contents, [2, 1, 2], "#") == " ".join("#" + text for text in apart)
    together = written_together(roles, contents, [2, 1, 2], BEGIN.decode()).encode()
    assert joined_fingerprints(together) == fingerprints(apart)


@given(st.lists(st.booleans(), max_size=70))
def test_places_are_where_a_mask_is_true(mask: list[bool]) -> None:
    assert places(np.array(mask, np.bool_)).tolist() == [place for place, is_there in enumerate(mask) if is_there]

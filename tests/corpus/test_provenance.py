"""Ids of rows depend only on turns and tools; provenance is read as it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corpus.provenance import Provenance, read_provenance, row_id
from shared.datasets.dataset_report import DatasetReport
from shared.datasets.reader import read_rows

ROW = {"prompt": "Hi", "response": "Hello"}
CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
PAIR = {"prompt": "Hi", "chosen": "Hello", "rejected": "No"}


def test_id_is_the_same_on_every_machine() -> None:
    assert row_id(ROW) == "83d46372d01c2b3d"


@pytest.mark.parametrize(
    "same",
    [
        CHAT,
        {"turns": CHAT["messages"]},
        {"instruction": "Hi", "output": "Hello"},
        ROW | {"rating": 5, "category": "x", "id": "other", "origin": "human", "lane": "code"},
        ROW | {"note": "unknown to Mens"},
    ],
)
def test_labels_and_form_do_not_matter(same: dict[str, Any]) -> None:
    assert row_id(same) == row_id(ROW)


@pytest.mark.parametrize(
    "other",
    [
        ROW | {"system": "Be brief"},
        ROW | {"response": "Hello "},
        CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]},
        PAIR,
        ROW | {"response": ""},
    ],
)
def test_another_text_is_another_row(other: dict[str, Any]) -> None:
    assert row_id(other) != row_id(ROW)


def test_pair_of_answers_is_identified_without_labels() -> None:
    assert row_id(PAIR | {"rating": 4, "id": "x"}) == row_id(PAIR)
    assert row_id(PAIR | {"rejected": "Never"}) != row_id(PAIR)


def test_id_and_origin_are_known_to_the_reader() -> None:
    report = DatasetReport()
    row = CHAT | {"id": "3f9a", "origin": "human"}
    assert (
        len(list(read_rows([json.dumps(row).encode(), json.dumps(row | {"id": 7, "origin": {}}).encode()], report)))
        == 2
    )
    assert not report.unused_keys


def test_provenance_is_read_as_written(tmp_path: Path) -> None:
    written = Provenance(id="a", source="file:x", locator={"file": "x", "line": 3}, redactions={"EMAIL": 1})
    (tmp_path / "x.sources.jsonl").write_bytes(msgspec.json.encode(written) + b"\n")
    assert list(read_provenance(tmp_path / "x.sources.jsonl")) == [written]

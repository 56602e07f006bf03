"""Converted rows compared with other libraries' own reading of the same files: `datasets` 5 and TRL."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.harness.peers import peers_python
from cli.conversion.convert import Rules, convert_file
from cli.conversion.outcomes import RowOptions
from cli.conversion.sources import open_source, read_rows
from shared.datasets.reader import read_rows as read_training_rows
from tests.support import conversion_peers
from tests.support.conversion_peers import PREFERENCES, ROWS, SHAREGPT

pytestmark = [pytest.mark.bench, pytest.mark.long]  # the libraries take a minute to import


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("peers")
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(made / "home")}
    command = [peers_python("trl", "datasets"), conversion_peers.__file__, str(made)]
    subprocess.run(command, check=True, env=offline, capture_output=True, timeout=240)
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    return json.loads((folder / "expected.json").read_bytes())


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("name", "file", "split"),
    [
        ("saved", "saved", ""),
        ("test", "splits", "test"),
        ("shuffled", "shuffled", ""),
        ("parquet", "rows.parquet", ""),
        ("csv", "pairs.csv", ""),
        ("json", "pairs.json", ""),
    ],
)
def test_rows_are_those_that_the_library_reads(folder: Path, expected: Any, name: str, file: str, split: str) -> None:
    """But for the nulls of a typed table."""
    found = [row.value for row in read_rows(open_source(folder / file, split))]
    assert found == without_nulls(expected[name])


def test_a_typed_table_gives_back_the_rows_that_were_put_in(folder: Path, expected: Any, tmp_path: Path) -> None:
    tool = expected["saved"][0]["tools"][0]["function"]["parameters"]["properties"]
    assert None in tool.values()  # the table has merged the schemas
    report = convert_file(folder / "saved", tmp_path / "rows.jsonl", Rules())
    assert (report.rows, report.dropped) == (len(ROWS), 0)
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_bytes().splitlines()] == ROWS


@pytest.mark.parametrize(("name", "rows"), [("sharegpt", SHAREGPT), ("preferences", PREFERENCES)])
def test_chats_are_those_that_trl_makes(expected: Any, name: str, rows: list[Any], tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    convert_file(source, output, Rules(options=RowOptions(as_supervised=True)))
    assert [json.loads(line) for line in output.read_bytes().splitlines()] == expected[name]
    assert len(list(read_training_rows(output.read_bytes().splitlines()))) == len(rows)

"""Mix files in a folder, run in this process or in several."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from corpus.mixing.mix import MixResult, run_mix
from corpus.mixing.mix_file import Mix
from corpus.mixing.mix_report import SourceReport


def write_rows(path: Path, *rows: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def question(number: int, **labels: Any) -> dict[str, Any]:
    """A row whose words no other number has."""
    words = " ".join(f"word{number}x{place}" for place in range(12))
    return {"prompt": f"Question {words}?", "response": f"Answer {words}.", **labels}


def mixed(folder: Path, *sources: dict[str, Any] | str, strict: bool = True, **keys: Any) -> MixResult:
    listed = [source if isinstance(source, dict) else {"path": source} for source in sources]
    mix = Mix.model_validate({"output": "out/train.jsonl", "sources": listed, **keys})
    return run_mix(mix, folder / "mix.yaml", strict=strict)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def output(folder: Path) -> list[dict[str, Any]]:
    return rows_of(folder / "out" / "train.jsonl")


def ids(folder: Path) -> list[str]:
    return [row["id"] for row in output(folder)]


def report_of(result: MixResult, path: str) -> SourceReport:
    return next(source for source in result.report.sources if source.path == path)


def content(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((folder / "out").iterdir())}


def divided(monkeypatch: pytest.MonkeyPatch, processes: int, part_bytes: int = 3_000) -> None:
    """Read files in small parts, with this many processes."""
    monkeypatch.setattr("shared.datasets.file_parts.PART_BYTES", part_bytes)
    monkeypatch.setattr("shared.datasets.file_parts._SCAN_BYTES", 1_000)
    monkeypatch.setattr("shared.datasets.file_parts._processors", lambda: processes)
    monkeypatch.setattr("corpus.mixing.mix_run.RANGE_BYTES", 5_000)

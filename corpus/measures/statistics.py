"""Statistics of a training file: the data check's report, and the variety of the rows of each origin."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Executor
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest

from corpus.provenance import read_provenance
from corpus.shards import sources_path
from shared.contract.choices import DataMode
from shared.datasets.file_counts import LENGTHS
from shared.datasets.forms.recognition import method_of_file
from shared.datasets.report import inspect_file
from shared.datasets.rows import Record

SAMPLED_ROWS = 50_000
"""Number of rows per origin whose words are counted, from the first."""
MAX_PAIRS = 4_000_000
"""Largest number of word pairs held per origin, eight bytes each."""
UNKNOWN = "(none)"
SYNTHETIC, HUMAN = "synthetic", "human"
LESS = 0.5


class OriginStatistics(msgspec.Struct):
    """Measures of the rows of one origin.

    Attributes:
        characters: mean length of a row's turns.
        distinct_2: number of different pairs of neighbouring words, as a share of all such pairs.
        length_entropy: entropy of the rows' length classes, in bits; 0 if all rows are about equally long.
    """

    rows: int
    characters: float
    distinct_2: float
    length_entropy: float


class CorpusStatistics(msgspec.Struct):
    """Statistics of a training file.

    Attributes:
        diversity: share of the rows that are neither equal nor similar to another row.
        sources: number of rows by source, from the provenance; empty without it.
        stages: number of rows by the stages that they passed.
        origins: measures by origin.
        notes: notes on what the user should check.
    """

    rows: int
    error_count: int
    exact_duplicates: int
    near_duplicates: int
    diversity: float
    categories: dict[str, int]
    lanes: dict[str, int]
    ratings: dict[str, int]
    difficulties: dict[str, int]
    sources: dict[str, int]
    stages: dict[str, int]
    origins: dict[str, OriginStatistics]
    notes: list[str]


def measure(path: Path, *, executor: Executor | None = None) -> CorpusStatistics:
    """Read a training file, and its provenance if there is one next to it."""
    counts: dict[str, _OriginCounts] = {}

    def observe(record: Record, _line: int) -> None:
        origin = record.origin if isinstance(record.origin, str) else UNKNOWN
        turns = record.written_turns()
        counts.setdefault(origin, _OriginCounts()).add([turn.content or "" for turn in turns])

    report = inspect_file(
        path, mode=DataMode.LENIENT, observer=observe, executor=executor, method=method_of_file(path)
    ).training
    sources, stages, notes = Counter[str](), Counter[str](), list[str]()
    if sources_path(path).is_file():
        try:
            for origin in read_provenance(sources_path(path)):
                sources[origin.source] += 1
                stages[" → ".join(mark.partition("@")[0] for mark in origin.stages) or UNKNOWN] += 1
        except (msgspec.DecodeError, UnicodeDecodeError):
            sources.clear()
            stages.clear()
            notes.append(
                f"{sources_path(path).name} is not a file of provenance, so sources and stages are not counted."
            )
    repeats = report.duplicates
    origins = {name: counts[name].result() for name in sorted(counts)}
    return CorpusStatistics(
        rows=report.rows,
        error_count=report.error_count,
        exact_duplicates=repeats.exact_rows,
        near_duplicates=repeats.near_rows,
        diversity=round(1 - (repeats.exact_rows + repeats.near_rows) / max(1, report.rows), 4),
        categories=report.categories,
        lanes=report.lanes,
        ratings=report.ratings,
        difficulties=report.difficulties,
        sources=dict(sorted(sources.items())),
        stages=dict(sorted(stages.items())),
        origins=origins,
        notes=[*notes, *_notes(origins)],
    )


class _OriginCounts:
    """Counts of the rows of one origin."""

    def __init__(self) -> None:
        self._rows = self._characters = 0
        self._classes: Counter[int] = Counter()
        self._pairs = array("Q")

    def add(self, texts: list[str]) -> None:
        length = sum(map(len, texts))
        self._rows += 1
        self._characters += length
        self._classes[int(np.searchsorted(LENGTHS, length))] += 1
        if self._rows > SAMPLED_ROWS or len(self._pairs) > MAX_PAIRS:
            return
        words = [word for text in texts for word in text.lower().split()]
        self._pairs.extend(
            xxh3_64_intdigest(f"{first} {two}".encode(errors="replace")) for first, two in pairwise(words)
        )

    def result(self) -> OriginStatistics:
        return OriginStatistics(
            rows=self._rows,
            characters=round(self._characters / max(1, self._rows), 1),
            distinct_2=round(len(np.unique(np.frombuffer(self._pairs, np.uint64))) / max(1, len(self._pairs)), 4),
            length_entropy=round(entropy(self._classes.values()), 4),
        )


def entropy(counts: Iterable[int]) -> float:
    """Return the entropy of a distribution, in bits."""
    values = [count for count in counts if count]
    total = sum(values)
    return -sum(count / total * log2(count / total) for count in values) if len(values) > 1 else 0.0


def _notes(origins: dict[str, OriginStatistics]) -> Iterable[str]:
    human, made = origins.get(HUMAN), origins.get(SYNTHETIC)
    if not human or not made:
        return
    measures: list[tuple[str, Any]] = [
        ("different pairs of words", "distinct_2"), ("entropy of lengths", "length_entropy")
    ]  # fmt: skip
    for name, field in measures:
        ours, theirs = getattr(made, field), getattr(human, field)
        if ours < LESS * theirs:
            yield f"Synthetic rows are less than half as varied as human-written ones: {name} {ours:.2f} and {theirs:.2f}."

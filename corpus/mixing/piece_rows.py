"""Parts of sources: their tasks, and their valid rows that do not contain an eval item."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corpus.filters.contamination import CONTAMINATED, Overlap, loaded
from corpus.mixing.mix_report import Label
from corpus.mixing.record_formats import RecordFormat, convert
from corpus.shards import other_rows
from corpus.sources import SourcePart
from corpus.verdicts import VerdictCode
from shared.contract.choices import MethodType
from shared.datasets.dataset_report import DatasetReport
from shared.datasets.duplicates import SketchedRows
from shared.datasets.preferences.rated import parse_rated
from shared.datasets.preferences.rows import parse_pair
from shared.datasets.reader import read_records
from shared.datasets.row_validation import BYTE_ORDER_MARK
from shared.datasets.rows import Record, RowError

ROWS_AT_ONCE = 2_000
MAX_OVERLAPS = 50
"""Largest number of rows of a piece, and of a mix, that are listed because they contain part of an eval item."""
ENTRY = np.dtype(
    [
        ("key", "<u8"),
        ("begin", "<u8"),
        ("row", "<u4"),
        ("size", "<u4"),
        ("origin_size", "<u4"),
        ("copy", "<u2"),
        ("label", "<u2"),
    ]
)
"""Entry of a piece's index: place in the output; offsets of row and provenance; numbers of the row in the piece, of the
copy, and of the row's labels.
"""


@dataclass(frozen=True, slots=True)
class PieceTask:
    """A part of a source, and the settings for its rows.

    Attributes:
        name: the source's name, for the provenance of rows that have none.
        file: the part's file, for the same provenance.
        target: path of the piece's file, without its suffix.
        include: lanes that are kept; None keeps all.
        exact: whether digests are needed.
        near: whether digests and sketches are needed.
        group: grouping by which rows are held out; None if none are.
        evals: folder of the index of evals that rows must not contain; None without evals.
    """

    part: SourcePart
    method: MethodType
    name: str
    file: str
    target: Path
    mark: str
    seed: int
    weight: float
    sample_rate: float | None
    record_format: RecordFormat | None
    include: frozenset[str] | None
    exclude: frozenset[str]
    exact: bool
    near: bool
    group: str | None
    evals: Path | None


@dataclass(slots=True)
class MixPiece:
    """Findings on a part of a source.

    Attributes:
        lines: number of lines read, without blank ones at the end.
        dropped: number of rows left out, by code.
        sketched: fingerprints of the rows that are kept.
        ratings: their ratings; 0 for an unrated row.
        groups: hashes of their groups, if rows are held out.
        labels: the table that entries refer to.
        overlaps: rows that contain part of an eval item, by line number.
    """

    target: Path
    lines: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    sketched: SketchedRows = field(default_factory=SketchedRows)
    ratings: bytearray = field(default_factory=bytearray)
    groups: array[int] = field(default_factory=lambda: array("Q"))
    labels: list[Label] = field(default_factory=list)
    overlaps: list[tuple[int, Overlap]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.ratings)

    def entries(self) -> NDArray[Any]:
        """Return the index, on disk."""
        path = index_path(self.target)
        return np.memmap(path, ENTRY, "r") if path.stat().st_size else np.empty(0, ENTRY)


def index_path(target: Path) -> Path:
    """Return the path of a piece's index."""
    return target.with_suffix(".index")


ReadRow = tuple[int, Record, bytes, bytes | None]
"""A valid row: line number, decoded row, its line, and the line of its provenance."""


def rows_without_evals(task: PieceTask, piece: MixPiece) -> Iterator[ReadRow]:
    """Yield the valid rows that do not contain an eval item."""
    rows = _records(task, piece)
    if task.evals is None:
        yield from rows
        return
    index = loaded(task.evals)
    while batch := list(islice(rows, ROWS_AT_ONCE)):
        turns = [record.written_turns() for _, record, _, _ in batch]
        texts = [
            ([turn.content or "" for turn in chat], [turn.content or "" for turn in chat if turn.role == "user"])
            for chat in turns
        ]
        for row, overlap in zip(batch, index.overlaps(texts), strict=True):
            if overlap and len(piece.overlaps) < MAX_OVERLAPS:
                piece.overlaps.append((row[0], overlap))
            if overlap and overlap.score >= CONTAMINATED:
                piece.dropped[VerdictCode.CONTAMINATED] += 1
            else:
                yield row


def _records(task: PieceTask, piece: MixPiece) -> Iterator[ReadRow]:
    """Yield the valid rows of the part."""
    part = task.part
    with part.rows.open() as file:
        lines = file.readlines()
    if part.rows.first_line == 1 and lines:
        lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
    origins = _origins(part, lines)
    piece.lines = sum(not line.isspace() for line in lines)
    first = part.rows.first_line
    if task.method is MethodType.SUPERVISED:
        report = DatasetReport()
        if task.record_format:
            lines = [_converted(line, task.record_format, piece) for line in lines]
        read = read_records(lines, report, first_line=first)
        for number, record in read:
            yield number, record, lines[number - first], origins[number - first] if origins else None
        blank = sum(line.isspace() for line in lines)
        piece.dropped.update(report.errors_by_code)
        if blank:  # blank lines are left out silently, as in the original
            piece.dropped -= Counter({"ROW_BLANK": blank})
        return
    parse = parse_rated if task.method is MethodType.KTO else parse_pair
    for number, line in enumerate(lines, first):
        try:
            yield number, parse(line).record, line, origins[number - first] if origins else None
        except RowError as error:
            if not line.isspace():
                piece.dropped[error.code] += 1


def _origins(part: SourcePart, lines: list[bytes]) -> list[bytes] | None:
    """Return the provenance lines that belong to a part; None without provenance.

    Raises:
        ArtifactInvalid: ``CORPUS_SHARD_CHANGED``.
    """
    if not part.origins:
        return None
    with part.origins.open() as file:
        origins = file.readlines()
    if len(origins) > len(lines) or not all(line.isspace() for line in lines[len(origins) :]):
        raise other_rows(part.rows.path)
    return origins


def _converted(line: bytes, form: RecordFormat, piece: MixPiece) -> bytes:
    if line.isspace():
        return line
    try:
        return convert(line, form)
    except RowError as error:
        piece.dropped[error.code] += 1
        return b"\n"

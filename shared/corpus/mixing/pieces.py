"""Pieces: the rows of a part of a source that its weight keeps, each with its place in the output.

A process makes one piece from one part, so memory holds one part. The piece's file has the rows sorted by that place, so
that the rows of a range of places are next to each other; its index is an array on disk.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.contract.choices import MethodType
from shared.corpus.filters.contamination import CONTAMINATED, Overlap, loaded
from shared.corpus.mixing.record_formats import RecordFormat, convert, known_lane, lane_of
from shared.corpus.mixing.sampling import copies_of, hash_of, order_of
from shared.corpus.provenance import Provenance, record_id, row_id
from shared.corpus.sources import SourcePart
from shared.corpus.verdicts import VerdictCode
from shared.datasets.conversation_text import written
from shared.datasets.dataset_report import DatasetReport
from shared.datasets.duplicates import SketchedRows
from shared.datasets.fingerprints import fingerprints
from shared.datasets.preferences.rated import parse_rated
from shared.datasets.preferences.rows import parse_pair
from shared.datasets.reader import read_records
from shared.datasets.row_validation import BYTE_ORDER_MARK
from shared.datasets.rows import Record, RowError
from shared.host import disk_errors

ROWS_AT_ONCE = 2_000
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
"""Entry of a piece's index: place in the output; where row and provenance lie; number of the row in the piece, of the copy, and
of the row's labels.
"""
Label = tuple[str | None, str | None, str | None, int | None]
"""A row's category, lane, origin and rating."""
MAX_OVERLAPS = 50
"""Rows of a piece, and of a mix, that are listed because they hold a part of an item of an eval."""
MAX_LABELS = 50_000
"""Different labels of one piece; rows beyond them count as unlabelled."""


@dataclass(frozen=True, slots=True)
class PieceTask:
    """A part of a source, and what becomes of its rows.

    Attributes:
        name: of the source, in the provenance of rows without one.
        file: of the part, in the same.
        target: the piece's file, without its ending.
        include: lanes that are kept; None keeps all.
        near: whether sketches are needed.
        group: what rows are held out by; None if none are.
        evals: folder of the index of evals that rows must not hold; None without evals.
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
    near: bool
    group: str | None
    evals: Path | None


@dataclass(slots=True)
class MixPiece:
    """Findings on a part of a source.

    Attributes:
        lines: that were read, without blank ones at the end.
        dropped: rows that are left out, by code.
        sketched: the fingerprints of the rows that are kept.
        ratings: of these; 0 for an unrated row.
        groups: hashes of the groups of these, if rows are held out.
        labels: the table that entries name.
        overlaps: rows that hold a part of an item of an eval, by line number.
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
    """Return the place of a piece's index."""
    return target.with_suffix(".index")


def rows_path(target: Path) -> Path:
    """Return the place of a piece's rows."""
    return target.with_suffix(".rows")


def make_piece(task: PieceTask) -> MixPiece:
    """Read a part, and write its piece."""
    piece = MixPiece(task.target)
    entries: list[tuple[int, int, int, int, bytes, bytes]] = []
    label_numbers: dict[Label, int] = {}
    texts: list[str] = []
    for number, record, line, origin in _without_evals(task, piece):
        row = _MixedRow.of(task, record, line)
        if not row.is_wanted(task):
            piece.dropped[VerdictCode.LANE] += 1
            continue
        if not (copies := copies_of(task.seed, row.id, task.weight, task.sample_rate)):
            continue
        provenance = _provenance(task, number, line, origin, row.id)
        if len(label_numbers) < MAX_LABELS:
            label_numbers.setdefault(row.label, len(label_numbers))
        label = label_numbers.get(row.label, 0)
        encoded = row.encoded(), msgspec.json.encode(provenance) + b"\n"
        entries += [(order_of(task.seed, row.id, copy), piece.rows, copy, label, *encoded) for copy in range(copies)]
        piece.ratings.append(record.rating or 0)
        if task.group:
            piece.groups.append(hash_of(task.seed, "holdout", _group(task.group, row, provenance)))
        texts.append(written(record.written_turns()))
        if len(texts) == ROWS_AT_ONCE:
            _sketch(piece, texts, near=task.near)
    _sketch(piece, texts, near=task.near)
    piece.labels = list(label_numbers)
    _write(piece, entries)
    return piece


@dataclass(frozen=True, slots=True)
class _MixedRow:
    """A row with its id and its labels.

    Attributes:
        lane: which the mix selects by; the row's own may be missing.
        keys: of the line, not decoded.
    """

    id: str
    lane: str
    label: Label
    keys: dict[str, msgspec.Raw]

    @classmethod
    def of(cls, task: PieceTask, record: Record, line: bytes) -> _MixedRow:
        is_chat = task.method is MethodType.SUPERVISED
        own_id = record_id(record) if is_chat else row_id(msgspec.json.decode(line))
        keys = _decode_keys(line)
        written_lane = record.lane or known_lane(record.category)
        if written_lane and not record.lane:
            keys["lane"] = msgspec.Raw(msgspec.json.encode(written_lane))
        origin = record.origin if isinstance(record.origin, str) else None
        label = (record.category, written_lane, origin, record.rating)
        return cls(own_id, lane_of(record.lane, record.category), label, keys)

    def is_wanted(self, task: PieceTask) -> bool:
        """Return whether the mix takes rows of this lane."""
        return (task.include is None or self.lane in task.include) and self.lane not in task.exclude

    def encoded(self) -> bytes:
        """Return the line that is written: the row's keys, its id first."""
        self.keys.pop("id", None)
        return msgspec.json.encode({"id": self.id, **self.keys}) + b"\n"


_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_provenance = msgspec.json.Decoder(Provenance).decode


_ReadRow = tuple[int, Record, bytes, bytes | None]
"""A valid row: line number, row, its line, and the line of its provenance."""


def _without_evals(task: PieceTask, piece: MixPiece) -> Iterator[_ReadRow]:
    """Yield the valid rows that do not hold an item of an eval."""
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


def _records(task: PieceTask, piece: MixPiece) -> Iterator[_ReadRow]:
    """Yield the valid rows of the part."""
    part = task.part
    with part.rows.open() as file:
        lines = file.readlines()
    if part.rows.first_line == 1 and lines:
        lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
    origins: list[bytes] | None = None
    if part.origins:
        with part.origins.open() as file:
            origins = file.readlines()
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
        if blank:  # blank lines are left out without a word, as in the original
            piece.dropped -= Counter({"ROW_BLANK": blank})
        return
    parse = parse_rated if task.method is MethodType.KTO else parse_pair
    for number, line in enumerate(lines, first):
        try:
            yield number, parse(line).record, line, origins[number - first] if origins else None
        except RowError as error:
            if not line.isspace():
                piece.dropped[error.code] += 1


def _converted(line: bytes, form: RecordFormat, piece: MixPiece) -> bytes:
    if line.isspace():
        return line
    try:
        return convert(line, form)
    except RowError as error:
        piece.dropped[error.code] += 1
        return b"\n"


def _provenance(task: PieceTask, number: int, line: bytes, origin: bytes | None, row: str) -> Provenance:
    if origin is None:
        found = Provenance(
            id=row,
            source=f"file:{task.name}",
            locator={"file": task.file, "line": number},
            content_sha256=sha256(line.rstrip(b"\r\n")).hexdigest(),
        )
    else:
        found = _decode_provenance(origin)
        found.id = row
    found.stages = [*found.stages, task.mark]
    return found


def _group(by: str, row: _MixedRow, provenance: Provenance) -> str:
    """Return the name of the group that a row is held out with."""
    if by not in ("source_group", "path"):
        raw = row.keys.get(by)
        return bytes(raw).decode() if raw else ""
    locator = provenance.locator
    group = next(
        (locator[name] for name in (("path",) if by == "path" else ("group", "repo", "path")) if locator.get(name)),
        None,
    )
    return f"{provenance.source}\0{group}" if group else row.id


def _sketch(piece: MixPiece, texts: list[str], *, near: bool) -> None:
    digests, sketches = fingerprints(texts, near=near)
    begin = len(piece.sketched)
    piece.sketched.extend(
        SketchedRows(bytearray(sketches), array("Q", digests), array("I", range(begin, begin + len(digests))))
    )
    texts.clear()


def _write(piece: MixPiece, entries: list[tuple[int, int, int, int, bytes, bytes]]) -> None:
    """Write the piece's rows by ascending place, and its index."""
    entries.sort(key=lambda entry: entry[:3])
    index = np.empty(len(entries), ENTRY)
    begin = 0
    with disk_errors(), rows_path(piece.target).open("wb") as file:
        for number, (key, row, copy, label, line, origin) in enumerate(entries):
            index[number] = (key, begin, row, len(line), len(origin), copy, label)
            file.write(line)
            file.write(origin)
            begin += len(line) + len(origin)
        index.tofile(index_path(piece.target))

"""Pieces: the rows that the weight keeps from a part of a source, each with its place in the output.

A process makes one piece from one part, so only one part is in its memory. The piece's file has the rows sorted by
place, so that the rows of a range of places are adjacent; its index is an array on disk.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from corpus.mixing.mix_report import Label
from corpus.mixing.piece_rows import ENTRY, ROWS_AT_ONCE, MixPiece, PieceTask, index_path, rows_without_evals
from corpus.mixing.record_formats import known_lane, lane_of
from corpus.mixing.sampling import copies_of, hash_of, order_of
from corpus.provenance import Provenance, parse_provenance, record_id, row_id
from corpus.shards import require_same_row
from corpus.verdicts import VerdictCode
from shared.contract.choices import MethodType
from shared.datasets.conversation_text import written
from shared.datasets.duplicates import SketchedRows
from shared.datasets.fingerprints import fingerprints
from shared.datasets.rows import Record
from shared.host import disk_errors

MAX_LABELS = 50_000
"""Largest number of different labels per piece; rows with further labels count as unlabelled."""


def rows_path(target: Path) -> Path:
    """Return the path of a piece's rows."""
    return target.with_suffix(".rows")


def make_piece(task: PieceTask) -> MixPiece:
    """Read a part, and write its piece."""
    piece = MixPiece(task.target)
    entries: list[tuple[int, int, int, int, bytes, bytes]] = []
    label_numbers: dict[Label, int] = {}
    texts: list[str] = []
    for number, record, line, origin in rows_without_evals(task, piece):
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
        encoded = row.encoded(), _encode(provenance) + b"\n"
        entries += [(order_of(task.seed, row.id, copy), piece.rows, copy, label, *encoded) for copy in range(copies)]
        piece.ratings.append(record.rating or 0)
        if task.group:
            piece.groups.append(hash_of(task.seed, "holdout", _group(task.group, row, provenance)))
        if task.exact or task.near:
            texts.append(written(record.written_turns()))
        if len(texts) == ROWS_AT_ONCE:
            _sketch(piece, texts, near=task.near)
    _sketch(piece, texts, near=task.near)
    piece.labels = list(label_numbers)
    _write(piece, entries)
    return piece


@dataclass(slots=True)
class _MixedRow:
    """A row with its id and its labels.

    Attributes:
        lane: lane that the mix selects by; the row itself may have none.
        keys: the line's keys, not decoded.
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
        return _encode({"id": self.id, **self.keys}) + b"\n"


_encode = msgspec.json.Encoder().encode
_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _provenance(task: PieceTask, number: int, line: bytes, origin: bytes | None, row: str) -> Provenance:
    if origin is None:
        provenance = Provenance(
            id=row,
            source=f"file:{task.name}",
            locator={"file": task.file, "line": number},
            content_sha256=sha256(line.rstrip(b"\r\n")).hexdigest(),
        )
    else:
        provenance = parse_provenance(origin)
        if task.record_format is None:  # of other formats, the row is made of the line
            require_same_row(provenance.id, row, task.part.rows.path, number)
        provenance.id = row
    provenance.stages = [*provenance.stages, task.mark]
    return provenance


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
    keys, rows, copies, labels, lines, origins = zip(*entries, strict=True) if entries else ((),) * 6
    index = np.empty(len(entries), ENTRY)
    index["key"], index["row"], index["copy"], index["label"] = np.array(keys, np.uint64), rows, copies, labels
    index["size"], index["origin_size"] = list(map(len, lines)), list(map(len, origins))
    ends = np.cumsum(index["size"].astype(np.uint64) + index["origin_size"])
    index["begin"][1:] = ends[:-1]
    index["begin"][:1] = 0
    with disk_errors(), rows_path(piece.target).open("wb") as file:
        file.writelines(chain.from_iterable(zip(lines, origins, strict=True)))
        index.tofile(index_path(piece.target))

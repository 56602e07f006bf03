"""Rows of a file, page by page, from the trainer's own label builder: which tokens are trained on, which are cut off,
and which rows are invalid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from api.data_view.line_offsets import LineOffsets
from api.data_view.types import DataPiece, DataRow, Only, PieceKind, RowNote, RowsRead, TrainedText
from shared.contract.choices import MethodType
from shared.datasets.forms.recognition import method_of_file
from shared.datasets.preferences.rated import parse_rated
from shared.datasets.preferences.rows import as_rows, parse_pair
from shared.datasets.reader import line_stream, parse_row
from shared.datasets.report_types import LineProblem
from shared.datasets.rows import RowError, TrainingRow
from shared.errors import InvalidRequest
from shared.tokenization.assistant_spans import find_assistant_spans
from shared.tokenization.labels import IGNORED, LabelledChat, label_chats
from shared.tokenization.supervision_counts import SupervisionCounts
from shared.tokenization.tokenizer import Tokenizer

SECONDS = 2.0
"""Time in which a page is read; the page ends with the rows that were read until then."""
# A number of rows alone does not bound a page: one row may have megabytes.
MAX_PAGE_BYTES = 1_000_000
MAX_CHARACTERS = 8_000
"""Largest number of characters of a line, or of a piece of text, in an answer."""
MAX_TOKENS, LAST_TOKENS = 4_000, 3_000
"""Number of a row's tokens in an answer, and how many of these are from the row's end, where the model's answers are.
"""
FATAL = frozenset(("unsupported", "without_embedding", "nothing_supervised"))
"""Notes on rows that cannot be trained on."""


class RowReader:
    """Reads pages of one file.

    Args:
        tokenizer: the base's tokenizer; None: rows are checked and not tokenised.
        usual_length: length at which rows are cut if a caller names none.
        seconds: time for a page.
    """

    def __init__(
        self, path: Path, tokenizer: Tokenizer | None, usual_length: int | None, *, seconds: float = SECONDS
    ) -> None:
        self._path, self._tokenizer, self._usual_length, self._seconds = path, tokenizer, usual_length, seconds
        self._offsets = LineOffsets()

    @cached_property
    def method(self) -> MethodType:
        """Training method that the first row is meant for."""
        return method_of_file(self._path)

    def page(self, after: int, limit: int, only: Only, seq_len: int | None, method: MethodType | None) -> RowsRead:
        """Read rows after a line.

        Args:
            after: number of the line before the page.
            limit: largest number of rows.
            only: the kind of rows to return; others are left out.
            seq_len: length at which rows are cut; None: the usual length.
            method: method that decides how a line is read; None: the usual method.
        """
        deadline = time.monotonic() + self._seconds
        length, read_as = (seq_len or self._usual_length) if self._tokenizer else None, method or self.method
        rows: list[DataRow] = []
        last, size, has_more = after, 0, False
        with self._path.open("rb") as file:
            offset = self._offsets.find(file, after, deadline)
            if offset is None:
                return RowsRead(seq_len=length, method=read_as, data=[], has_more=True, next_after=after)
            file.seek(offset)
            lines = _lines(file, after + 1)
            for number, line, line_bytes in lines:
                row = self._row(number, line, line_bytes, length, read_as)
                last = number
                if IS_WANTED[only](row):
                    rows.append(row)
                    size += len(row.model_dump_json())
                if len(rows) == limit or size >= MAX_PAGE_BYTES or time.monotonic() > deadline:
                    has_more = next(lines, None) is not None
                    break
        return RowsRead(seq_len=length, method=read_as, data=rows, has_more=has_more, next_after=last)

    def _row(self, number: int, line: bytes, line_bytes: int, length: int | None, method: MethodType) -> DataRow:
        text = line[: 4 * MAX_CHARACTERS].decode(errors="replace")[:MAX_CHARACTERS].rstrip("\r\n")
        row = DataRow(
            line=number,
            bytes=line_bytes,
            text=text,
            text_is_cut=len(text.encode()) < len(line.rstrip(b"\r\n")) and len(text) >= MAX_CHARACTERS - 2,
            error=None,
            trainable=True,
        )
        try:
            chats = _parse(method, line, number)
        except RowError as error:
            problem = LineProblem(line=number, code=error.code, field=error.field, reason=error.reason)
            return row.model_copy(update={"error": problem, "trainable": False})
        return self._tokenised(row, chats, length) if self._tokenizer and length else row

    def _tokenised(self, row: DataRow, chats: tuple[TrainingRow, ...], length: int) -> DataRow:
        """Return the row with the tokens of its answer, or of both answers of a pair; the same beginning is cut from
        both.
        """
        assert self._tokenizer
        tokenizer, counts = self._tokenizer, SupervisionCounts(length, last_k=0)
        texts: list[TrainedText] = []
        try:
            labelled = label_chats(tokenizer, [find_assistant_spans(tokenizer, chat) for chat in chats])
        except InvalidRequest as error:
            counts.refuse(chats[0], error.message, knows_tools=tokenizer.knows_tools)
        else:
            if len(labelled) == 1:
                counts.add(labelled[0], chats[0], tokenizer)
            else:
                counts.add_preference(labelled, chats[0], tokenizer)
            cut = max(0, max(len(labelled_chat.ids) for labelled_chat in labelled) - length)
            texts = [self._trained(labelled_chat, max(1, len(labelled_chat.ids) - cut)) for labelled_chat in labelled]
        notes = [RowNote(name=name, reason=count.first[0].reason) for name, count in counts.notes.items()]
        return row.model_copy(
            update={
                "trainable": not counts.notes.keys() & FATAL,
                "notes": notes,
                "trained": texts[0] if texts else None,
                "rejected": texts[1] if len(texts) > 1 else None,
            }
        )

    def _trained(self, labelled: LabelledChat, kept: int) -> TrainedText:
        example = labelled.example(kept)
        return TrainedText(
            tokens=len(example.ids),
            supervised_tokens=example.targets,
            truncated_tokens=example.truncated,
            method=labelled.chat.method,
            pieces=list(self._pieces(labelled, [label != IGNORED for label in example.labels])),
        )

    def _pieces(self, labelled: LabelledChat, learnt: list[bool]) -> Iterator[DataPiece]:
        total, cut = len(labelled.ids), len(labelled.ids) - len(learnt)
        kinds = [
            self._kind(labelled.ids[index], index >= cut and learnt[index - cut], index < cut) for index in range(total)
        ]
        if total > MAX_TOKENS:
            first = MAX_TOKENS - LAST_TOKENS
            kinds[first : total - LAST_TOKENS] = ["omitted"] * (total - MAX_TOKENS)
        starts = [0, *(start for start, _ in labelled.offsets[1:]), len(labelled.chat.text)]
        position = 0
        for kind, same in groupby(kinds):
            end = position + len(list(same))
            text = "" if kind == "omitted" else labelled.chat.text[starts[position] : starts[end]]
            shown = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
            yield DataPiece(kind=kind, text=shown, ids=[] if kind == "omitted" else labelled.ids[position:end])
            position = end

    def _kind(self, id_: int, is_learnt: bool, is_cut: bool) -> PieceKind:
        if is_cut:
            return "cut"
        if is_learnt:
            return "end" if self._tokenizer and id_ in self._tokenizer.end_ids else "supervised"
        return "special" if id_ in self._special else "context"

    @cached_property
    def _special(self) -> frozenset[int]:
        assert self._tokenizer
        added = self._tokenizer.backend.get_added_tokens_decoder()
        return frozenset(id_ for id_, token in added.items() if token.special)


IS_WANTED: dict[Only, Callable[[DataRow], bool]] = {
    "all": lambda _: True,
    "errors": lambda row: not row.trainable,
    "cut": lambda row: any(note.name == "cut" for note in row.notes),
    "notes": lambda row: bool(row.notes),
}


def _parse(method: MethodType, line: bytes, number: int) -> tuple[TrainingRow, ...]:
    """Return the chats of a line: one chat, or both chats of a pair."""
    if method is MethodType.DPO:
        return as_rows(parse_pair(line).record, number)
    if method is MethodType.KTO:
        return as_rows(parse_rated(line).record, number)
    return (parse_row(line, number),)


def _lines(file: BinaryIO, first: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield number, content and size of the lines from a position in the file on; a line over the limit is cut to its
    beginning.
    """
    pieces = line_stream(file, is_start=first == 1)
    # A line over the limit comes in several pieces.
    for number, line in enumerate(iter(partial(next, pieces, b""), b""), start=first):
        size, piece = len(line), line
        while not piece.endswith(b"\n") and (piece := next(pieces, b"")):
            size += len(piece)
        yield number, line, size

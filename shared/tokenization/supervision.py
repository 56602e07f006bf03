"""The supervision report: which tokens of a data file would be trained on, before anything is trained.

It runs the trainer's own label builder over a file: how many tokens of each row are supervised, whether the token that
ends a turn is among them, what truncation cuts off. Rows are read as a stream; the report's lists are capped, its counts
are not. A file with a row in which nothing is supervised, or which the base's template does not accept, is refused.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from shared.datasets.dataset_report import DatasetReport, line_errors
from shared.datasets.filters import RowFilter
from shared.datasets.reader import TrainingRow, count_lines, line_stream, parse_row, read_rows
from shared.datasets.rows import RowError
from shared.errors import InvalidRequest
from shared.tokenization.assistant_spans import Chat, Method, find_assistant_spans
from shared.tokenization.labels import BATCH_ROWS, IGNORED, Example, LabelledChat, label_chats
from shared.tokenization.supervision_report import Bucket, LineNote, LineNotes, Piece, RowSupervision, SupervisionReport
from shared.tokenization.tokenizer import Tokenizer

MAX_LISTED = 20
MAX_SAMPLE_PIECES = 200


def supervise_file(
    path: Path,
    base_folder: Path,
    *,
    seq_len: int,
    last_k: int = 0,
    min_rating: int = 0,
    filters: RowFilter | None = None,
    lenient: bool = False,
    limit_rows: int | None = None,
) -> SupervisionReport:
    """Report what a base would be trained on in a file; ``report.refuse()`` raises if a row cannot be.

    Args:
        path: a JSONL file.
        base_folder: folder with the base's tokenizer and template.
        seq_len: tokens kept of a row, counted from the end.
        last_k: only the last K supervised tokens of a row are kept; 0: all.
        min_rating: rows rated lower are left out.
        filters: instead of ``min_rating``, a contract's whole filter.
        lenient: skip bad lines.
        limit_rows: read no more lines than these; they are drawn at random, the same ones every time, and the
            report has ``sampled`` set.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID``: a line that was read is not a row.
        InvalidRequest: ``TOKENIZER_NOT_FOUND`` or ``TEMPLATE_UNSUPPORTED``: no row at all can be encoded.
    """
    tokenizer = Tokenizer.load(base_folder)
    with path.open("rb") as file:
        lines = count_lines(file)
    chosen = sample_lines(lines, limit_rows)
    wanted = filters or RowFilter(min_rating=min_rating)
    found = SupervisionPass(tokenizer, seq_len=seq_len, last_k=last_k, filters=wanted)
    with path.open("rb") as file:
        if chosen is None:
            rows = read_rows(file, DatasetReport() if lenient else None)
        else:
            rows = _sampled_rows(file, chosen, lenient)
        for row in rows:
            found.add(row)
    return found.report(lines, sampled=chosen is not None)


def sample_lines(lines: int, limit: int | None) -> frozenset[int] | None:
    """Numbers of the lines that are looked at, the same ones every time; None: all of them."""
    if limit is None or lines <= limit:
        return None
    return frozenset(random.Random(0).sample(range(1, lines + 1), limit))


class SupervisionPass:
    """A supervision report in the making: rows are added one by one, by the code that reads the file."""

    def __init__(self, tokenizer: Tokenizer, *, seq_len: int, last_k: int, filters: RowFilter) -> None:
        self._tokenizer, self._filters = tokenizer, filters
        self._counts = _SupervisionCounts(seq_len, last_k)
        self._batch: list[TrainingRow] = []

    def add(self, row: TrainingRow) -> None:
        """Count a valid row."""
        if not self._filters.admits(row):
            self._counts.filtered_rows += 1
            return
        self._batch.append(row)
        if len(self._batch) == BATCH_ROWS:
            self._label()

    def report(self, lines: int, *, sampled: bool) -> SupervisionReport:
        """The report on the rows so far, of a file of so many lines."""
        self._label()
        return self._counts.report(self._tokenizer, lines, sampled)

    def _label(self) -> None:
        """Label the waiting rows together: the tokenizer takes a batch at once."""
        for labelled in label_chats(self._tokenizer, list(_chats(self._tokenizer, self._batch, self._counts))):
            self._counts.add(labelled, self._tokenizer)
        self._batch.clear()


def text_pieces(labelled: LabelledChat, example: Example) -> list[tuple[str, bool]]:
    """The kept text of a row in pieces, each with whether it is supervised."""
    flags = [label != IGNORED for label in example.labels]
    starts = [start for start, _ in labelled.offsets[-len(flags) :]]
    borders = [index for index, flag in enumerate(flags) if not index or flag != flags[index - 1]]
    return [
        (labelled.chat.text[starts[first] : None if after is None else starts[after]], flags[first])
        for first, after in itertools.zip_longest(borders, borders[1:])
    ]


def _sampled_rows(file: BinaryIO, chosen: Collection[int], lenient: bool) -> Iterator[TrainingRow]:
    number, is_start = 0, True
    # A line over the limit comes in several pieces.
    for piece in line_stream(file):
        number += is_start
        if is_start and number in chosen:
            try:
                row = parse_row(piece, number)
            except RowError as error:
                if not lenient:
                    found = DatasetReport()
                    found.add_error(number, error)
                    raise line_errors(found) from error
            else:
                yield row
        is_start = piece.endswith(b"\n")


def _chats(tokenizer: Tokenizer, rows: Iterable[TrainingRow], counts: _SupervisionCounts) -> Iterator[Chat]:
    for row in rows:
        try:
            yield find_assistant_spans(tokenizer, row)
        except InvalidRequest as error:
            counts.rows += 1
            counts.unsupported.add(row.line, error.message)


@dataclass(slots=True)
class _Notes:
    count: int = 0
    first: list[LineNote] = field(default_factory=list)

    def add(self, line: int, reason: str) -> None:
        self.count += 1
        if len(self.first) < MAX_LISTED:
            self.first.append(LineNote(line=line, reason=reason))

    def notes(self) -> LineNotes:
        return LineNotes(count=self.count, first=self.first)


@dataclass(slots=True)
class _SupervisionCounts:
    """Counts and notes of the rows so far; its size does not grow with the file."""

    seq_len: int
    last_k: int
    rows: int = 0
    filtered_rows: int = 0
    tokens: int = 0
    supervised: int = 0
    truncated: int = 0
    truncated_rows: int = 0
    methods: set[Method] = field(default_factory=set)
    row_table: list[RowSupervision] = field(default_factory=list)
    token_sizes: Counter[int] = field(default_factory=Counter)
    supervised_sizes: Counter[int] = field(default_factory=Counter)
    nothing: _Notes = field(default_factory=_Notes)
    unsupported: _Notes = field(default_factory=_Notes)
    no_end: _Notes = field(default_factory=_Notes)
    last_turn_only: _Notes = field(default_factory=_Notes)
    prompt_differs: _Notes = field(default_factory=_Notes)
    cut: _Notes = field(default_factory=_Notes)
    developer_as_system: _Notes = field(default_factory=_Notes)
    thoughts_left_out: _Notes = field(default_factory=_Notes)
    names_left_out: _Notes = field(default_factory=_Notes)
    sample: list[Piece] = field(default_factory=list)

    def add(self, labelled: LabelledChat, tokenizer: Tokenizer) -> None:
        example = labelled.example(self.seq_len, self.last_k)
        supervised = example.targets
        self.rows += 1
        self.tokens += len(example.ids)
        self.supervised += supervised
        self.truncated += example.truncated
        self.truncated_rows += example.truncated > 0
        self.methods.add(labelled.chat.method)
        self.token_sizes[_bucket(len(example.ids))] += 1
        self.supervised_sizes[_bucket(supervised)] += 1
        missing = _missing_end(labelled, example, tokenizer)
        chat = labelled.chat
        if not supervised:
            self.nothing.add(chat.line, f"no assistant token to learn is within {self.seq_len} tokens")
        elif missing:
            self.no_end.add(chat.line, missing)
        for notes, holds, reason in (
            (self.cut, example.truncated, f"{example.truncated} tokens are cut off at the beginning"),
            (self.last_turn_only, chat.last_turn_only, "the template writes earlier answers differently from the last"),
            (self.prompt_differs, chat.prompt_differs, "the generation prompt is not how the answer's turn begins"),
            (self.developer_as_system, chat.developer_as_system, "the template has no developer"),
            (self.thoughts_left_out, "thoughts" in chat.left_out, "the template leaves out thoughts of an answer"),
            (self.names_left_out, "names" in chat.left_out, "the template leaves out names"),
        ):
            if holds:
                notes.add(chat.line, reason)
        if len(self.row_table) < MAX_LISTED:
            self.row_table.append(
                RowSupervision(
                    line=example.line,
                    tokens=len(example.ids),
                    supervised=supervised,
                    end_learnt=supervised > 0 and not missing,
                    truncated=example.truncated,
                )
            )
        if supervised and not self.sample:
            pieces = text_pieces(labelled, example)[:MAX_SAMPLE_PIECES]
            self.sample = [Piece(text=text, learnt=learnt) for text, learnt in pieces]

    def report(self, tokenizer: Tokenizer, lines: int, sampled: bool) -> SupervisionReport:
        return SupervisionReport(
            lines=lines,
            rows=self.rows,
            sampled=sampled,
            filtered_rows=self.filtered_rows,
            tokens=self.tokens,
            supervised_tokens=self.supervised,
            truncated_tokens=self.truncated,
            truncated_rows=self.truncated_rows,
            truncation_fraction=self.truncated / max(1, self.tokens + self.truncated),
            method="offsets" if "offsets" in self.methods or not tokenizer.template.has_marks else "marks",
            end_token=tokenizer.end_token,
            template_digest=tokenizer.template_digest,
            row_table=self.row_table,
            token_histogram=_histogram(self.token_sizes),
            supervised_histogram=_histogram(self.supervised_sizes),
            truncated=self.cut.notes(),
            nothing_supervised=self.nothing.notes(),
            unsupported=self.unsupported.notes(),
            end_not_learnt=self.no_end.notes(),
            last_turn_only=self.last_turn_only.notes(),
            prompt_differs=self.prompt_differs.notes(),
            developer_as_system=self.developer_as_system.notes(),
            thoughts_left_out=self.thoughts_left_out.notes(),
            names_left_out=self.names_left_out.notes(),
            sample=self.sample,
        )


def _missing_end(labelled: LabelledChat, example: Example, tokenizer: Tokenizer) -> str:
    """Why the end token of a supervised answer is not a label; empty when it is one."""
    # Tokens are cut off at the beginning only, so an answer that is supervised at all keeps its end.
    flags = [label != IGNORED for label in example.labels]
    ends = [i for i, flag in enumerate(flags) if flag and not (i + 1 < len(flags) and flags[i + 1])]
    for end in ends:
        if example.ids[end] not in tokenizer.end_ids:
            after = labelled.chat.text[labelled.offsets[end - len(flags)][1] :][:20]
            if not after:
                return "the template writes no end token after the answer"
            return f"after the answer the template writes {after!r}, not an end token"
    return ""


def _bucket(size: int) -> int:
    """The smallest power of two that is not smaller; 0 for 0."""
    return 1 << (size - 1).bit_length() if size else 0


def _histogram(sizes: Counter[int]) -> list[Bucket]:
    return [Bucket(up_to=size, rows=rows) for size, rows in sorted(sizes.items())]

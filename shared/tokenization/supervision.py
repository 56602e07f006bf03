"""The supervision report: the tokens of a data file that would be trained on, before anything is trained.

It runs the trainer's own label builder over a file: how many tokens of each row are supervised, whether the token that
ends a turn is among them, and how much truncation cuts off. Rows are read as a stream; the report's lists are capped,
its counts are not. A file is refused if nothing is supervised in one of its rows, or the base's template refuses one.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from shared.datasets.dataset_report import DatasetReport, line_errors
from shared.datasets.filters import RowFilter
from shared.datasets.reader import TrainingRow, count_lines, line_stream, parse_row, read_rows
from shared.datasets.rows import RowError
from shared.errors import InvalidRequest
from shared.tokenization.assistant_spans import Chat, find_assistant_spans
from shared.tokenization.labels import BATCH_ROWS, label_chats
from shared.tokenization.supervision_counts import SupervisionCounts
from shared.tokenization.supervision_report import SupervisionReport
from shared.tokenization.template_arguments import DEFAULT_OPTIONS, ChatOptions
from shared.tokenization.tokenizer import Tokenizer


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
    options: ChatOptions = DEFAULT_OPTIONS,
) -> SupervisionReport:
    """Report what a base would be trained on in a file; ``report.refuse()`` raises an error if a row cannot be trained
    on.

    Args:
        path: a JSONL file.
        base_folder: folder with the base's tokenizer and template.
        seq_len: tokens kept of a row, counted from the end.
        last_k: only the last K supervised tokens of a row are kept; 0: all.
        min_rating: rows rated lower are left out.
        filters: instead of ``min_rating``, a contract's whole filter.
        lenient: skip bad lines.
        limit_rows: read at most this many lines; they are drawn at random, the same ones every time, and the report has
            ``sampled`` set.
        options: how chats are written with the template.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID``: a line that was read is not a row.
    """
    tokenizer = Tokenizer.load(base_folder, options)
    with path.open("rb") as file:
        lines = count_lines(file)
    chosen = sample_lines(lines, limit_rows)
    row_filter = filters or RowFilter(min_rating=min_rating)
    counting = SupervisionPass(tokenizer, seq_len=seq_len, last_k=last_k, filters=row_filter)
    with path.open("rb") as file:
        if chosen is None:
            rows = read_rows(file, DatasetReport() if lenient else None)
        else:
            rows = _sampled_rows(file, chosen, lenient)
        for row in rows:
            counting.add(row)
    return counting.report(lines, sampled=chosen is not None)


def sample_lines(lines: int, limit: int | None) -> frozenset[int] | None:
    """Return the numbers of the sampled lines, which are the same each time, or None for all lines."""
    if limit is None or lines <= limit:
        return None
    return frozenset(random.Random(0).sample(range(1, lines + 1), limit))


class SupervisionPass:
    """Builds a supervision report: rows are added one by one, by the code that reads the file."""

    def __init__(self, tokenizer: Tokenizer, *, seq_len: int, last_k: int, filters: RowFilter) -> None:
        self._tokenizer, self._filters = tokenizer, filters
        self._counts = SupervisionCounts(seq_len, last_k)
        self._batch: list[TrainingRow] = []
        self._largest = 0

    def add(self, row: TrainingRow) -> None:
        """Count a valid row."""
        if not self._filters.admits(row):
            self._counts.filtered_rows += 1
            return
        self._batch.append(row)
        if len(self._batch) == BATCH_ROWS:
            self._label()

    def measure(self, row: TrainingRow) -> None:
        """Take a row outside the sample into account for the longest one. Only rows with more characters than all
        earlier ones are tokenised; in a file in random order these are about a dozen.
        """
        size = sum(len(turn.content or "") + len(turn.reasoning_content or "") for turn in row.messages)
        if size <= self._largest or not self._filters.admits(row):
            return
        self._largest = size
        with suppress(InvalidRequest):
            [labelled] = label_chats(
                self._tokenizer, [find_assistant_spans(self._tokenizer, row, compare_prompt=False)]
            )
            self._counts.longest = max(self._counts.longest, len(labelled.ids))

    @property
    def lost_lines(self) -> Collection[int]:
        """Line numbers of rows so far that cannot be trained on; complete after the report."""
        return self._counts.lost_lines

    def report(self, lines: int, *, sampled: bool) -> SupervisionReport:
        """Make the report on the rows that were added so far, for a file with this many lines."""
        self._label()
        return self._counts.report(self._tokenizer, lines, sampled)

    def _label(self) -> None:
        """Label the waiting rows together, because the tokenizer processes batches."""
        rows = {row.line: row for row in self._batch}
        for labelled in label_chats(self._tokenizer, list(_chats(self._tokenizer, self._batch, self._counts))):
            self._counts.add(labelled, rows[labelled.chat.line], self._tokenizer)
        self._batch.clear()


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
                    report = DatasetReport()
                    report.add_error(number, error)
                    raise line_errors(report) from error
            else:
                yield row
        is_start = piece.endswith(b"\n")


def _chats(tokenizer: Tokenizer, rows: Iterable[TrainingRow], counts: SupervisionCounts) -> Iterator[Chat]:
    for row in rows:
        try:
            yield find_assistant_spans(tokenizer, row)
        except InvalidRequest as error:
            counts.refuse(row, error.message, knows_tools=tokenizer.knows_tools)

"""The supervision report on a file of preferences: a pair is two chats with the same prompt, truncated at the same
place; a rated answer is one chat.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from shared.contract.choices import MethodType
from shared.datasets.dataset_report import DatasetReport, line_errors
from shared.datasets.filters import RowFilter
from shared.datasets.preferences.reader import read_preferences
from shared.datasets.preferences.rows import PreferenceRecord, as_rows
from shared.datasets.reader import count_lines
from shared.datasets.rows import Record, TrainingRow
from shared.errors import InvalidRequest
from shared.tokenization.assistant_spans import Chat, find_assistant_spans
from shared.tokenization.labels import BATCH_ROWS, label_chats
from shared.tokenization.supervision import sample_lines
from shared.tokenization.supervision_counts import SupervisionCounts
from shared.tokenization.supervision_report import SupervisionReport
from shared.tokenization.template_arguments import DEFAULT_OPTIONS, ChatOptions
from shared.tokenization.tokenizer import Tokenizer

Sides = tuple[Chat, ...]


def supervise_preferences(
    path: Path,
    base_folder: Path,
    *,
    seq_len: int,
    filters: RowFilter,
    lenient: bool = False,
    limit_rows: int | None = None,
    options: ChatOptions = DEFAULT_OPTIONS,
    method: MethodType = MethodType.DPO,
) -> SupervisionReport:
    """Report what a base would be trained on in a file of preferences, as `supervision.py:supervise_file` does.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID``: a line is not a row of the method.
    """
    tokenizer = Tokenizer.load(base_folder, options)
    with path.open("rb") as file:
        lines = count_lines(file)
    chosen = sample_lines(lines, limit_rows)
    counting, report = PreferenceSupervisionPass(tokenizer, seq_len=seq_len, filters=filters), DatasetReport()
    with path.open("rb") as file:
        for line, record in read_preferences(method, file, report):
            take = counting.add if chosen is None or line in chosen else counting.measure
            take(record, line)
    if report.error_count and not lenient:
        raise line_errors(report)
    return counting.report(lines, sampled=chosen is not None)


class PreferenceSupervisionPass:
    """Builds a supervision report on preferences, as `shared/tokenization/supervision.py:SupervisionPass` does on answers."""

    def __init__(self, tokenizer: Tokenizer, *, seq_len: int, filters: RowFilter) -> None:
        self._tokenizer, self._filters = tokenizer, filters
        self._counts = SupervisionCounts(seq_len, last_k=0)
        self._batch: list[tuple[TrainingRow, Sides]] = []
        self._largest = 0

    def add(self, record: Record, line: int) -> None:
        """Count a valid row."""
        if not self._filters.admits(record):
            self._counts.filtered_rows += 1
            return
        rows = as_rows(_preference(record), line)
        try:
            sides = tuple(find_assistant_spans(self._tokenizer, row) for row in rows)
        except InvalidRequest as error:
            self._counts.refuse(rows[0], error.message, knows_tools=self._tokenizer.knows_tools)
            return
        self._batch.append((rows[0], sides))
        if len(self._batch) == BATCH_ROWS // 2:
            self._label()

    def measure(self, record: Record, line: int) -> None:
        """Take a row outside the sample into account for the longest one."""
        size = sum(len(turn.content or "") + len(turn.reasoning_content or "") for turn in record.written_turns())
        if size <= self._largest or not self._filters.admits(record):
            return
        self._largest = size
        with suppress(InvalidRequest):
            chats = [
                find_assistant_spans(self._tokenizer, row, compare_prompt=False)
                for row in as_rows(_preference(record), line)
            ]
            lengths = [len(labelled.ids) for labelled in label_chats(self._tokenizer, chats)]
            self._counts.longest = max(self._counts.longest, *lengths)

    @property
    def lost_lines(self) -> Collection[int]:
        """Line numbers of rows so far that cannot be trained on; complete after the report."""
        return self._counts.lost_lines

    def report(self, lines: int, *, sampled: bool) -> SupervisionReport:
        """Make the report on the rows that were added so far, for a file with this many lines."""
        self._label()
        return self._counts.report(self._tokenizer, lines, sampled)

    def _label(self) -> None:
        labelled = iter(label_chats(self._tokenizer, [chat for _, sides in self._batch for chat in sides]))
        for row, sides in self._batch:
            self._counts.add_preference([next(labelled) for _ in sides], row, self._tokenizer)
        self._batch.clear()


def _preference(record: Record) -> PreferenceRecord:
    assert isinstance(record, PreferenceRecord)
    return record

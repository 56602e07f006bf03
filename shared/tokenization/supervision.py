"""The supervision report: what a data file would teach a base model, told before anything is trained.

It runs the trainer's own label builder over a file: how many tokens of each row are learnt, whether the token that ends
a turn is among them, what truncation cuts off. Rows are read as a stream; the report's lists are capped, its counts are
not. A file with a row in which nothing is learnt, or which the base's template does not take, is to be refused.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shared.answers import Chat, Method, find_answers
from shared.dataset import DatasetReport, TrainingRow, line_errors, line_stream, parse_row, read_rows
from shared.errors import InvalidRequest
from shared.labels import IGNORED, Example, LabelledChat, in_batches, label_chats
from shared.row_errors import RowError
from shared.row_filters import RowFilter
from shared.supervision_report import Bucket, LineNote, LineNotes, Piece, RowSupervision, SupervisionReport
from shared.tokenizer import Tokenizer

MAX_LISTED = 20
MAX_SAMPLE_PIECES = 200
COUNT_BYTES = 1 << 20


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
    """Report what a base would learn from a file; ``report.refuse()`` raises if that is not in order.

    Args:
        path: a JSONL file.
        base_folder: folder with the base's tokenizer and template.
        seq_len: tokens kept of a row, counted from the end.
        last_k: only the last K supervised tokens of a row are learnt; 0: all.
        min_rating: rows rated lower are left out.
        filters: instead of ``min_rating``, all that a contract can ask for.
        lenient: skip bad lines.
        limit_rows: look at no more lines than these; they are drawn at random, the same ones every time, and the
            report says that it sampled.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID``: a line that was looked at is no row.
        InvalidRequest: ``TOKENIZER_NOT_FOUND`` or ``TEMPLATE_UNSUPPORTED``: no row at all can be encoded.
    """
    tokenizer = Tokenizer.load(base_folder)
    lines = _count_lines(path)
    sampled = limit_rows is not None and lines > limit_rows
    tally = _Tally(seq_len, last_k)
    wanted = filters or RowFilter(min_rating=min_rating)
    everything = _sample_rows(path, lines, limit_rows or 0, lenient) if sampled else _all_rows(path, lenient)
    for batch in in_batches(everything):
        rows = [row for row in batch if wanted.admits(row)]
        tally.filtered_rows += len(batch) - len(rows)
        for labelled in label_chats(tokenizer, list(_chats(tokenizer, rows, tally))):
            tally.add(labelled, tokenizer)
    return tally.report(tokenizer, lines, sampled)


def sample_view(tokenizer: Tokenizer, row: TrainingRow, *, seq_len: int, last_k: int = 0) -> list[tuple[str, bool]]:
    """A row as the trainer sees it: pieces of text, each with whether it is learnt.

    Raises:
        InvalidRequest: ``TEMPLATE_UNSUPPORTED``, with the line number.
    """
    [labelled] = label_chats(tokenizer, [find_answers(tokenizer, row)])
    return _pieces(labelled, labelled.example(seq_len, last_k))


def _pieces(labelled: LabelledChat, example: Example) -> list[tuple[str, bool]]:
    flags = [label != IGNORED for label in example.labels]
    starts = [start for start, _ in labelled.offsets[-len(flags) :]]
    borders = [index for index, flag in enumerate(flags) if not index or flag != flags[index - 1]]
    return [
        (labelled.chat.text[starts[first] : None if after is None else starts[after]], flags[first])
        for first, after in itertools.zip_longest(borders, borders[1:])
    ]


def _count_lines(path: Path) -> int:
    """Newlines, and a last line without one."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(COUNT_BYTES):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last != b"\n")


def _all_rows(path: Path, lenient: bool) -> Iterator[TrainingRow]:
    with path.open("rb") as file:
        yield from read_rows(file, DatasetReport() if lenient else None)


def _sample_rows(path: Path, lines: int, limit: int, lenient: bool) -> Iterator[TrainingRow]:
    chosen = set(random.Random(0).sample(range(1, lines + 1), limit))
    number, is_start = 0, True
    with path.open("rb") as file:
        for piece in line_stream(file):  # a line over the limit comes in several
            number += is_start
            if is_start and number in chosen and (row := _parse(piece, number, lenient)):
                yield row
            is_start = piece.endswith(b"\n")


def _parse(line: bytes, number: int, lenient: bool) -> TrainingRow | None:
    try:
        return parse_row(line, number)
    except RowError as error:
        if lenient:
            return None
        found = DatasetReport()
        found.add_error(number, error)
        raise line_errors(found) from error


def _chats(tokenizer: Tokenizer, rows: Iterable[TrainingRow], tally: _Tally) -> Iterator[Chat]:
    for row in rows:
        try:
            yield find_answers(tokenizer, row)
        except InvalidRequest as error:
            tally.rows += 1
            tally.unsupported.add(row.line, error.message)


@dataclass(slots=True)
class _Notes:
    count: int = 0
    first: list[LineNote] = field(default_factory=list)

    def add(self, line: int, reason: str) -> None:
        self.count += 1
        if len(self.first) < MAX_LISTED:
            self.first.append(LineNote(line=line, reason=reason))

    def done(self) -> LineNotes:
        return LineNotes(count=self.count, first=self.first)


@dataclass(slots=True)
class _Tally:
    """What has been counted so far; its size does not grow with the file."""

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
        self._note(labelled.chat, supervised, missing)
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
            pieces = _pieces(labelled, example)[:MAX_SAMPLE_PIECES]
            self.sample = [Piece(text=text, learnt=learnt) for text, learnt in pieces]

    def _note(self, chat: Chat, supervised: int, missing: str) -> None:
        if not supervised:
            self.nothing.add(chat.line, f"no assistant token to learn is within {self.seq_len} tokens")
        elif missing:
            self.no_end.add(chat.line, missing)
        if chat.last_turn_only:
            self.last_turn_only.add(chat.line, "the template writes earlier answers otherwise than the last")
        if chat.prompt_differs:
            self.prompt_differs.add(chat.line, "the generation prompt is not how the answer's turn begins")

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
            nothing_supervised=self.nothing.done(),
            unsupported=self.unsupported.done(),
            end_not_learnt=self.no_end.done(),
            last_turn_only=self.last_turn_only.done(),
            prompt_differs=self.prompt_differs.done(),
            sample=self.sample,
        )


def _missing_end(labelled: LabelledChat, example: Example, tokenizer: Tokenizer) -> str:
    """Why a learnt answer's end token is no label; empty when it is one.

    Tokens are cut at the beginning only, so an answer that is learnt at all keeps its end.
    """
    flags = [label != IGNORED for label in example.labels]
    ends = [i for i, flag in enumerate(flags) if flag and not (i + 1 < len(flags) and flags[i + 1])]
    for end in ends:
        if example.ids[end] not in tokenizer.end_ids:
            after = labelled.chat.text[labelled.offsets[end - len(flags)][1] :][:20]
            return f"after the answer the template writes {after!r}, not an end token" if after else _NO_END
    return ""


_NO_END = "the template writes no end token after the answer"


def _bucket(size: int) -> int:
    """The smallest power of two that is not smaller; 0 for 0."""
    return 1 << (size - 1).bit_length() if size else 0


def _histogram(sizes: Counter[int]) -> list[Bucket]:
    return [Bucket(up_to=size, rows=rows) for size, rows in sorted(sizes.items())]

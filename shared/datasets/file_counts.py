"""Figures of the data report on one file, or on some of its rows: counts, and the indexes of ``duplicates.py``.

Rows are collected one by one and counted in batches, because counting a thousand values at once takes a tenth of the
time.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from shared.contract.epochs import DEFAULT_DIFFICULTY
from shared.datasets.conversation_text import written, written_together
from shared.datasets.duplicates import ExactIndex, SketchedRows
from shared.datasets.filters import RowFilter
from shared.datasets.fingerprints import BEGIN, fingerprints, joined_fingerprints
from shared.datasets.plain_chats import PlainBlock, PlainChat, Records
from shared.datasets.rows import Message, Record

MAX_LABELS = 50
"""Distinct categories, lanes or task families that are counted; the others count as ``(other)``."""
LENGTHS = (128, 512, 2_048, 8_192, 32_768, 131_072)
"""Upper bounds of the length classes, in characters; a further class is above the last."""
ROWS_AT_ONCE = 2_000
CHARACTERS_AT_ONCE = 1 << 18
_MAX_LABEL_CHARACTERS = 100

Observer = Callable[[Record, int], None]
"""Receives the valid rows of a file with their line numbers."""
_Labels = tuple[int | None, int | None, str | None, str | None, str | None]
"""A row's rating, difficulty, category, lane and task family."""
_labels = attrgetter("rating", "difficulty", "category", "lane", "task_family")


@dataclass(slots=True)
class RowCounts:
    """Counts and indexes of rows that follow each other in a file.

    Attributes:
        trainable: rows that pass the filter, by difficulty.
        lengths: rows by their class in ``LENGTHS``.
        total: characters of content.
        longest: number of characters of the longest row, and its negated line, so that the first of equally long rows
            compares as the greatest.
        sketched: the rows, if near duplicates are still to be searched for.
    """

    turns: Counter[str] = field(default_factory=Counter)
    ratings: Counter[int | None] = field(default_factory=Counter)
    difficulties: Counter[int | None] = field(default_factory=Counter)
    trainable: Counter[int] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    lanes: Counter[str] = field(default_factory=Counter)
    task_families: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    rows: int = 0
    total: int = 0
    longest: tuple[int, int] = (0, 0)
    exact: ExactIndex = field(default_factory=ExactIndex)
    sketched: SketchedRows = field(default_factory=SketchedRows)

    def read(
        self, rows: PlainBlock | Records, filters: RowFilter, *, near: bool, observer: Observer | None = None
    ) -> bool:
        """Count the next rows, with all of their labels; return whether there may be more.

        From records it counts at most ``ROWS_AT_ONCE`` rows, and fewer if they are long; from a block, it counts all
        rows.

        Args:
            observer: sees each of the records.
        """
        if isinstance(rows, PlainBlock):
            self._read_block(rows, filters, near=near)
            return False
        lines: list[int] = []
        labels: list[_Labels] = []
        turns: list[Message] = []
        counts: list[int] = []
        texts: list[str] = []
        left = CHARACTERS_AT_ONCE
        for line, record in rows:
            messages = record.written_turns()
            text = written(messages)
            lines.append(line)
            labels.append((record.rating, record.difficulty, record.category, record.lane, record.task_family))
            turns += messages
            counts.append(len(messages))
            texts.append(text)
            if observer:
                observer(record, line)
            left -= len(text)
            if left < 0 or len(lines) == ROWS_AT_ONCE:
                break
        if not lines:
            return False
        self._count_labels(labels, filters)
        self._count_turns([turn.role for turn in turns], [turn.content or "" for turn in turns], counts, lines)
        self._keep(*fingerprints(texts, near=near), lines, near=near)
        return True

    def _read_block(self, block: PlainBlock, filters: RowFilter, *, near: bool) -> None:
        lines = range(block.first_line, block.first_line + len(block.chats))
        self._count_labels(list(map(_labels, block.chats)), filters)
        self._count_turns(block.roles, block.contents, block.turns, lines)
        text = written_together(block.roles, block.contents, block.turns, BEGIN.decode())
        prints = joined_fingerprints(text.encode(), near=near)
        if len(prints[0]) != len(lines):  # a content contains the mark
            prints = fingerprints([written(_turns(chat)) for chat in block.chats], near=near)
        self._keep(*prints, lines, near=near)

    def _keep(self, digests: list[int], sketches: bytes, lines: Sequence[int], *, near: bool) -> None:
        self.rows += len(lines)
        rows = SketchedRows(bytearray(sketches), array("Q", digests), array("I", lines))
        self.exact.add(rows.digests, rows.lines)
        if near:
            self.sketched.extend(rows)

    def _count_labels(self, labels: list[_Labels], filters: RowFilter) -> None:
        for (rating, difficulty, *names), rows in Counter(labels).items():
            self.ratings[rating] += rows
            self.difficulties[difficulty] += rows
            if filters.admits_marks(rating, difficulty) and filters.has_category(*names):
                self.trainable[difficulty or DEFAULT_DIFFICULTY] += rows
            for counts, name in zip((self.categories, self.lanes, self.task_families), names, strict=True):
                counts[_name(name)] += rows

    def _count_turns(self, roles: list[str], contents: list[str], turns: list[int], lines: Sequence[int]) -> None:
        self.turns.update(roles)
        characters = np.cumsum([0, *map(len, contents)])
        sizes = np.diff(characters[np.cumsum([0, *turns])])
        self.total += int(characters[-1])
        self.lengths.update(np.searchsorted(LENGTHS, sizes).tolist())
        longest = int(sizes.argmax())
        self.longest = max(self.longest, (int(sizes[longest]), -lines[longest]))

    def extend(self, later: RowCounts) -> None:
        """Add the counts of later rows; new labels are added only up to ``MAX_LABELS``."""
        for name in ("turns", "ratings", "difficulties", "trainable", "lengths"):
            getattr(self, name).update(getattr(later, name))
        for name in ("categories", "lanes", "task_families"):
            _add_labels(getattr(self, name), getattr(later, name))
        self.rows += later.rows
        self.total += later.total
        self.longest = max(self.longest, later.longest)
        self.exact.extend(later.exact)


def _turns(chat: PlainChat) -> list[Message]:
    return [Message(turn.role, turn.content) for turn in chat.messages]


def _name(label: str | None) -> str:
    """Return the name that a label is counted under; labels are untrusted, so its length is bounded."""
    return "(none)" if label is None else label[:_MAX_LABEL_CHARACTERS]


def _add_labels(counts: Counter[str], later: Mapping[str, int]) -> None:
    for name, rows in later.items():
        counts[name if name in counts or len(counts) < MAX_LABELS else "(other)"] += rows

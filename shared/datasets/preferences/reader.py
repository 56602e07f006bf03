"""Read a file of preferences in one pass: check every line and report every bad one, in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from shared.contract.choices import MethodType
from shared.datasets.dataset_report import DatasetReport, Quarantine
from shared.datasets.preferences.rated import LABEL, RatedRecord, parse_rated
from shared.datasets.preferences.rows import (
    MAX_COMPARED_PAIRS,
    ParsedPreference,
    PreferenceRecord,
    essence,
    fingerprint,
    parse_pair,
)
from shared.datasets.reader import READ_BYTES, line_stream
from shared.datasets.rows import RowCode, RowError

ReadPreferences = Callable[[Iterable[bytes], DatasetReport, Quarantine | None], Iterator[tuple[int, PreferenceRecord]]]


def read_preferences(
    method: MethodType, lines: Iterable[bytes], report: DatasetReport, quarantine: Quarantine | None = None
) -> Iterator[tuple[int, PreferenceRecord]]:
    """Yield (line number, row) of the valid lines; the others are counted in ``report``.

    Args:
        method: decides the form of the rows: pairs, or rated answers.
    """
    parse: Callable[[bytes], ParsedPreference] = parse_pair
    if method is MethodType.KTO:
        earlier: dict[int, tuple[int, bool]] = {}
        parse = parse_rated
    stream = line_stream(lines)
    for number, line in enumerate(stream, start=1):
        try:
            parsed = parse(line)
            if isinstance(parsed.record, RatedRecord):
                refuse_contradiction(parsed.record, number, earlier)
        except RowError as error:
            report.add_error(number, error)
            if quarantine:
                quarantine.add(number, error, line)
            # For a line over the limit, skip the remaining pieces.
            if len(line) == READ_BYTES and not line.endswith(b"\n") and isinstance(lines, io.IOBase):
                next((piece for piece in stream if piece.endswith(b"\n")), None)
        else:
            report.add_unused(parsed.unused_keys)
            report.add_warning(number, parsed.warning)
            yield number, parsed.record


def reading_of(method: MethodType) -> ReadPreferences:
    """Return :func:`read_preferences` for a method."""
    return partial(read_preferences, method)


def refuse_contradiction(record: RatedRecord, number: int, earlier: dict[int, tuple[int, bool]]) -> None:
    """Refuse a row that rates the answer of an earlier line differently.

    Args:
        earlier: line and rating by answer, of the first ``MAX_COMPARED_PAIRS`` different ones.

    Raises:
        RowError: ``ROW_LABEL_CONTRADICTS``.
    """
    answer = hash(fingerprint([record.prompt_turns, record.tools, essence(record.conversation()[-1])]))
    if len(earlier) < MAX_COMPARED_PAIRS:
        earlier.setdefault(answer, (number, record.is_good))
    line, was_good = earlier.get(answer, (number, record.is_good))
    if was_good != record.is_good:
        before = "good" if was_good else "bad"
        reason = f"line {line} rates the same answer to the same prompt {before}, and this line does not"
        raise RowError(RowCode.ROW_LABEL_CONTRADICTS, reason, LABEL)

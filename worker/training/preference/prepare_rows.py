"""Prepares a file of preferences: both chats of a pair are encoded and truncated at the same place in their common
prompt; a rated answer has only one chat.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shared.contract.choices import DataMode
from shared.contract.contracts import FineTuneContract
from shared.datasets.dataset_report import DatasetReport, line_errors
from shared.datasets.filters import RowFilter
from shared.datasets.preferences.rated import RatedRecord
from shared.datasets.preferences.reader import read_preferences
from shared.datasets.preferences.rows import PreferenceRecord, as_rows
from shared.datasets.rows import TrainingRow
from shared.errors import InvalidRequest
from shared.tokenization.assistant_spans import Chat
from worker.training.data.labelling import LabelledRows, Labeller
from worker.training.data.prepare import DEFAULT_DIFFICULTY, Tally, may_skip, refused_rows
from worker.training.data.prepared import RowWriter

ROWS_AT_ONCE = 256
Rows = tuple[TrainingRow, ...]
SHORT, UNKNOWN, NOTHING = 1, 2, 3
"""Reasons for leaving a pair out, as `worker/training/data/prepare.py:SKIPS` numbers them."""


def write_preferences(
    labeller: Labeller, folder: Path, path: Path, contract: FineTuneContract, vocab_size: int
) -> None:
    """Write the rows of a file into a folder: each pair as two rows, and each rated answer as one row whose weight is 1
    if it is good and otherwise 0.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID``, ``NOTHING_SUPERVISED``, ``EMBEDDING_ROW_MISSING``.
    """
    tally = Tally()
    with path.open("rb") as file, RowWriter(folder) as writer:
        for batch in _batches(_admitted(file, contract)):
            written = list(_written(labeller, tally, batch, contract.data.mode))
            if written:
                _add(writer, tally, labeller, written, contract, vocab_size)
                if tally.lost and not may_skip(contract):
                    break
        if not tally.rows or (tally.lost and not may_skip(contract)):
            raise refused_rows(tally, labeller, contract, vocab_size)
        writer.finish(tally.report(labeller))


def _admitted(file: Iterable[bytes], contract: FineTuneContract) -> Iterator[tuple[Rows, float]]:
    report, filters = DatasetReport(), RowFilter.of(contract.data)
    for line, record in read_preferences(contract.method.type, file, report):
        if report.error_count and contract.data.mode is DataMode.STRICT:
            break
        if filters.admits(record):
            yield as_rows(record, line), _weight(record)
    if report.error_count and contract.data.mode is DataMode.STRICT:
        raise line_errors(report)


def _weight(record: PreferenceRecord) -> float:
    return float(record.is_good) if isinstance(record, RatedRecord) else 1.0


def _batches(rows: Iterator[tuple[Rows, float]]) -> Iterator[list[tuple[Rows, float]]]:
    while batch := list(itertools.islice(rows, ROWS_AT_ONCE)):
        yield batch


def _written(
    labeller: Labeller, tally: Tally, batch: Iterable[tuple[Rows, float]], mode: DataMode
) -> Iterator[tuple[Rows, float, list[Chat]]]:
    """Yield the rendered rows; in lenient mode, only those that the template accepts, and count the others."""
    for rows, weight in batch:
        try:
            yield rows, weight, [labeller.write(row) for row in rows]
        except InvalidRequest:
            if mode is DataMode.STRICT:
                raise
            tally.refuse(rows[0].line)


def _add(
    writer: RowWriter,
    tally: Tally,
    labeller: Labeller,
    written: list[tuple[Rows, float, list[Chat]]],
    contract: FineTuneContract,
    vocab_size: int,
) -> None:
    """Truncate the rows of a batch, leave out rows without a trained token, and write the rest."""
    sides = len(written[0][0])
    rows = [row for together, _, _ in written for row in together]
    whole = labeller.label(rows, [chat for _, _, chats in written for chat in chats])
    cut = cut_together(whole, contract.exec.seq_len, sides)
    lines = np.fromiter((row.line for row in rows), np.int64, len(rows))
    reasons = _reasons(whole, cut, vocab_size, sides)
    tally.add(whole.lengths, cut, lines, reasons)
    if tally.unknown_id is None and (beyond := cut.ids[cut.ids >= vocab_size]).size:
        tally.unknown_id = int(beyond[0])
    kept = reasons == 0
    usable = cut.select(kept)
    writer.add(
        usable.lengths,
        ids=usable.ids,
        weights=usable.weights,
        lines=lines[kept],
        difficulties=np.fromiter((row.difficulty or DEFAULT_DIFFICULTY for row in rows), np.uint8, len(rows))[kept],
        row_weights=np.repeat(np.array([weight for _, weight, _ in written], np.float32), sides)[kept],
    )


def cut_together(rows: LabelledRows, seq_len: int, sides: int) -> LabelledRows:
    """Cut the same number of tokens from the beginning of all ``sides`` chats of a prompt, so that the longest fits."""
    excess = np.maximum(0, rows.lengths.reshape(-1, sides).max(axis=1) - seq_len)
    kept = np.maximum(1, rows.lengths - np.repeat(excess, sides))
    to_end = np.repeat(rows.starts + rows.lengths, rows.lengths) - np.arange(len(rows.ids))
    keep = to_end <= np.repeat(kept, rows.lengths)
    return LabelledRows(kept, rows.ids[keep], rows.weights[keep])


def _reasons(whole: LabelledRows, cut: LabelledRows, vocab_size: int, sides: int) -> npt.NDArray[np.int64]:
    """Return, for each row, 0 if it is usable, otherwise the number of its reason; both rows of a pair have the same."""
    # The first token has no prediction: an answer that begins there has lost its prompt.
    first = cut.weights[cut.starts] > 0
    lost = (cut.targets() == 0) | first
    if sides > 1:
        lost |= np.repeat(_equal(whole), sides)
    reasons = np.select(
        [cut.lengths < SHORT + 1, cut.per_row(cut.ids >= vocab_size) > 0, lost], [SHORT, UNKNOWN, NOTHING], 0
    )
    return np.repeat(reasons.reshape(-1, sides).max(axis=1), sides)


def _equal(rows: LabelledRows) -> npt.NDArray[np.bool_]:
    """Return, for each pair, whether both of its chats have the same tokens."""
    sequences = np.split(rows.ids, rows.starts[1:])
    return np.array(
        [np.array_equal(chosen, other) for chosen, other in zip(sequences[::2], sequences[1::2], strict=True)], np.bool_
    )

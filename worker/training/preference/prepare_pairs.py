"""Prepares a file of preferences: both chats of a pair are encoded, and cut at the same place of their common prompt."""

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
from shared.datasets.preferences.reader import read_pairs
from shared.datasets.preferences.rows import as_rows
from shared.datasets.rows import TrainingRow
from shared.errors import InvalidRequest
from shared.tokenization.assistant_spans import Chat
from worker.training.data.labelling import LabelledRows, Labeller
from worker.training.data.prepare import DEFAULT_DIFFICULTY, Tally, may_skip, refused_rows
from worker.training.data.prepared import RowWriter

PAIRS_AT_ONCE = 256
Rows = tuple[TrainingRow, TrainingRow]
SHORT, UNKNOWN, NOTHING = 1, 2, 3
"""Reasons for leaving a pair out, as `worker/training/data/prepare.py:SKIPS` numbers them."""


def write_pairs(labeller: Labeller, folder: Path, path: Path, contract: FineTuneContract, vocab_size: int) -> None:
    """Write the pairs of a file into a folder, each as two rows.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID``, ``NOTHING_SUPERVISED``, ``EMBEDDING_ROW_MISSING``. InvalidRequest:
            ``TEMPLATE_UNSUPPORTED``.
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


def _admitted(file: Iterable[bytes], contract: FineTuneContract) -> Iterator[Rows]:
    report, filters = DatasetReport(), RowFilter.of(contract.data)
    for line, record in read_pairs(file, report):
        if report.error_count and contract.data.mode is DataMode.STRICT:
            break
        if filters.admits(record):
            yield as_rows(record, line)
    if report.error_count and contract.data.mode is DataMode.STRICT:
        raise line_errors(report)


def _batches(pairs: Iterator[Rows]) -> Iterator[list[Rows]]:
    while batch := list(itertools.islice(pairs, PAIRS_AT_ONCE)):
        yield batch


def _written(
    labeller: Labeller, tally: Tally, pairs: Iterable[Rows], mode: DataMode
) -> Iterator[tuple[Rows, tuple[Chat, Chat]]]:
    """Yield the rendered pairs; in lenient mode, only those that the template accepts, and count the others."""
    for rows in pairs:
        try:
            yield rows, (labeller.write(rows[0]), labeller.write(rows[1]))
        except InvalidRequest:
            if mode is DataMode.STRICT:
                raise
            tally.refuse(rows[0].line)


def _add(
    writer: RowWriter,
    tally: Tally,
    labeller: Labeller,
    written: list[tuple[Rows, tuple[Chat, Chat]]],
    contract: FineTuneContract,
    vocab_size: int,
) -> None:
    """Cut the pairs of a batch to size, leave out those that teach nothing, write the rest."""
    rows = [row for pair, _ in written for row in pair]
    whole = labeller.label(rows, [chat for _, chats in written for chat in chats])
    cut = cut_pairs(whole, contract.exec.seq_len)
    lines = np.fromiter((row.line for row in rows), np.int64, len(rows))
    reasons = _reasons(whole, cut, vocab_size)
    tally.add(whole.lengths, cut, lines, reasons)
    if tally.unknown_id is None and (beyond := cut.ids[cut.ids >= vocab_size]).size:
        tally.unknown_id = int(beyond[0])
    kept = reasons == 0
    wanted = cut.select(kept)
    writer.add(
        wanted.lengths,
        ids=wanted.ids,
        weights=wanted.weights,
        lines=lines[kept],
        difficulties=np.fromiter((row.difficulty or DEFAULT_DIFFICULTY for row in rows), np.uint8, len(rows))[kept],
        row_weights=np.ones(int(kept.sum()), np.float32),
    )


def cut_pairs(rows: LabelledRows, seq_len: int) -> LabelledRows:
    """Cut both chats of each pair at the beginning, by the same number of tokens, so that the longer one fits."""
    excess = np.maximum(0, rows.lengths.reshape(-1, 2).max(axis=1) - seq_len)
    kept = np.maximum(1, rows.lengths - np.repeat(excess, 2))
    to_end = np.repeat(rows.starts + rows.lengths, rows.lengths) - np.arange(len(rows.ids))
    keep = to_end <= np.repeat(kept, rows.lengths)
    return LabelledRows(kept, rows.ids[keep], rows.weights[keep])


def _reasons(whole: LabelledRows, cut: LabelledRows, vocab_size: int) -> npt.NDArray[np.int64]:
    """Return for each row 0 if its pair is usable, otherwise the number of its reason; both of a pair have the same."""
    # The first token has no prediction: an answer that begins there has lost its prompt.
    first = cut.weights[cut.starts] > 0
    lost = (cut.targets() == 0) | first | np.repeat(_equal(whole), 2)
    found = np.select(
        [cut.lengths < SHORT + 1, cut.per_row(cut.ids >= vocab_size) > 0, lost], [SHORT, UNKNOWN, NOTHING], 0
    )
    return np.repeat(found.reshape(-1, 2).max(axis=1), 2)


def _equal(rows: LabelledRows) -> npt.NDArray[np.bool_]:
    """Return for each pair whether both of its chats have the same tokens."""
    parts = np.split(rows.ids, rows.starts[1:])
    return np.array([np.array_equal(one, other) for one, other in zip(parts[::2], parts[1::2], strict=True)], np.bool_)

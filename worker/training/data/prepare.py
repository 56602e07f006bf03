"""Prepares a data file for training: rows are validated, filtered, rendered with the template, tokenised and labelled.

The file is read as a stream and rows are written as they arrive, so memory does not grow with the file. Prepared rows
are kept in a cache, keyed by everything that decides their content; a second job on the same data starts at once.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shared.contract.choices import DataMode
from shared.contract.contracts import FineTuneContract
from shared.datasets.filters import RowFilter
from shared.datasets.reader import DatasetReport, TrainingRow, read_rows
from shared.datasets.row_weights import row_weight
from shared.errors import Code, DatasetInvalid, InvalidRequest
from shared.hashing import digest_json
from shared.tokenization.assistant_spans import Chat
from shared.tokenization.labels import format_line_numbers
from shared.tokenization.tokenizer import Tokenizer
from worker.training.data.fast_encoding import EncodersDiffer
from worker.training.data.labelling import LabelledRows, Labeller
from worker.training.data.prepared import (
    FORMAT_VERSION,
    MAX_SKIPPED_LINES,
    PreparationReport,
    PreparedRows,
    Row,
    RowWriter,
    new_folder,
    open_prepared,
)

__all__ = ["PreparationReport", "PreparedRows", "Row", "prepare"]

BATCH_ROWS = 512
BATCH_CHARACTERS = 1 << 20
"""A batch ends at the row that reaches this number of characters; a row has at most a million bytes."""
DEFAULT_DIFFICULTY = 5
SKIPS = ("short_seq", "token_id_oob", "no_supervised_positions")
"""Reasons for leaving a row out; the first that applies is counted."""
REFUSED = "template_refused"
"""Reason for leaving a row out in lenient mode, before it has tokens."""
FAST_BYTES = 4_000_000
"""Smallest file in bytes for which loading the faster tokenizer pays off."""


Write = Callable[[Labeller, Path, Path, FineTuneContract, int], None]
"""Writes a file's rows into a folder: (labeller, folder, file, contract, rows of the base's embedding)."""


def prepare(
    path: Path,
    sha256: str,
    tokenizer: Tokenizer,
    contract: FineTuneContract,
    cache: Path,
    vocab_size: int,
    write: Write | None = None,
) -> PreparedRows:
    """Prepare a data file, or return it from the cache.

    Args:
        path: a JSONL file.
        sha256: SHA-256 of its content.
        tokenizer: the base's tokenizer.
        contract: its data, exec and trajectory sections apply.
        cache: folder of prepared files; may be shared by processes and removed at any time between jobs.
        vocab_size: number of rows of the base's embedding: data with a larger token id cannot be trained on.
        write: function that writes the rows of the contract's training method; None: rows of answers.

    Raises:
        DatasetInvalid: ``SKIP_RATE_EXCEEDED``: more rows than that rate allows had to be skipped.
    """
    began = time.monotonic()
    folder = cache / content_key(sha256, tokenizer, contract, vocab_size)
    prepared, cached = open_prepared(folder), True
    if prepared is None:
        cached = False
        with new_folder(folder) as unfinished:
            _write(write or write_rows, unfinished, path, tokenizer, contract, vocab_size)
        prepared = open_prepared(folder)
        if prepared is None:
            raise OSError(f"{folder} was written but cannot be read back")
    prepared.report = replace(prepared.report, cached=cached, seconds=time.monotonic() - began)
    _refuse_losses(prepared.report, contract)
    return prepared


def content_key(sha256: str, tokenizer: Tokenizer, contract: FineTuneContract, vocab_size: int) -> str:
    """Return the name of the cache folder: the SHA-256 of everything that determines its content."""
    dated = any(
        "strftime_now" in template.text for template in (tokenizer.template, tokenizer.tool_template) if template
    )
    return digest_json(
        {
            "version": FORMAT_VERSION,
            "file": sha256,
            "tokenizer": tokenizer.digest,
            "day": dt.date.today().isoformat() if dated else None,  # noqa: DTZ011 (as the template itself)
            "vocab_size": vocab_size,
            "seq_len": contract.exec.seq_len,
            "last_k": contract.exec.qlora_ce_last_k,
            "mode": contract.data.mode,
            "skips": may_skip(contract),
            "filter": asdict(RowFilter.of(contract.data)),
            "trajectory": contract.trajectory.model_dump(mode="json"),
        }
        | ({"method": contract.method.type} if contract.has_preferences else {})
    )


def _write(
    write: Write, folder: Path, path: Path, tokenizer: Tokenizer, contract: FineTuneContract, vocab_size: int
) -> None:
    fast = path.stat().st_size >= FAST_BYTES
    try:
        write(Labeller(tokenizer, fast=fast), folder, path, contract, vocab_size)
    except EncodersDiffer:
        write(Labeller(tokenizer, fast=False), folder, path, contract, vocab_size)


def write_rows(labeller: Labeller, folder: Path, path: Path, contract: FineTuneContract, vocab_size: int) -> None:
    """Write rows of answers into a folder.

    Raises:
        DatasetInvalid, InvalidRequest: as :func:`prepare`.
    """
    tally = Tally()
    with path.open("rb") as file, RowWriter(folder) as writer:
        for batch in _in_batches(_admitted(file, contract)):
            if written := _written(labeller, tally, batch, contract.data.mode):
                rows, chats = [row for row, _ in written], [chat for _, chat in written]
                _add(writer, tally, rows, labeller.label(rows, chats), contract, vocab_size)
                # The preflight refuses such rows, unless it has seen only a sample.
                if tally.lost and not may_skip(contract):
                    break
        if not tally.rows or (tally.lost and not may_skip(contract)):
            raise refused_rows(tally, labeller, contract, vocab_size)
        writer.finish(tally.report(labeller))


def _written(
    labeller: Labeller, tally: Tally, rows: Iterable[TrainingRow], mode: DataMode
) -> list[tuple[TrainingRow, Chat]]:
    """Return the rendered rows; in lenient mode, only those that the template accepts, and count the others."""
    written = []
    for row in rows:
        try:
            written.append((row, labeller.write(row)))
        except InvalidRequest:
            if mode is DataMode.STRICT:
                raise
            tally.refuse(row.line)
    return written


def may_skip(contract: FineTuneContract) -> bool:
    """Return whether rows that cannot be trained on are left out, in lenient mode or within a rate set by the contract."""
    return contract.data.mode is DataMode.LENIENT or contract.exec.qlora_max_skip_rate is not None


def _admitted(file: Iterable[bytes], contract: FineTuneContract) -> Iterator[TrainingRow]:
    skipped = DatasetReport() if contract.data.mode is DataMode.LENIENT else None
    return filter(RowFilter.of(contract.data).admits, read_rows(file, skipped))


def _in_batches(rows: Iterable[TrainingRow]) -> Iterator[list[TrainingRow]]:
    """Divide the stream into batches, limited in rows and in characters, because rows may be many and short or few and
    long.
    """
    batch, characters = [], 0
    for row in rows:
        batch.append(row)
        characters += _size(row)
        if len(batch) >= BATCH_ROWS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _size(row: TrainingRow) -> int:
    """Return the approximate number of characters of a row."""
    size = len(str(row.tools)) if row.tools else 0
    for message in row.messages:
        size += len(message.content or "")
        if message.tool_calls:
            size += len(str(message.tool_calls))
    return size


def _add(
    writer: RowWriter,
    tally: Tally,
    rows: list[TrainingRow],
    labelled: LabelledRows,
    contract: FineTuneContract,
    vocab_size: int,
) -> None:
    """Truncate the rows of a batch, leave out rows without a supervised token, and write the rest."""
    cut = labelled.last_supervised(contract.exec.qlora_ce_last_k).last_tokens(contract.exec.seq_len)
    reasons = _reasons(cut, vocab_size)
    kept = reasons == 0
    weights = [row_weight(row, contract.trajectory) for row in rows]
    lines = np.fromiter((row.line for row in rows), np.int64, len(rows))
    tally.add(labelled.lengths, cut, lines, reasons)
    if tally.unknown_id is None and (beyond := cut.ids[cut.ids >= vocab_size]).size:
        tally.unknown_id = int(beyond[0])
    tally.add_weights([weight for weight, keep in zip(weights, kept, strict=True) if keep])
    usable = cut.select(kept)
    writer.add(
        usable.lengths,
        ids=usable.ids,
        weights=usable.weights,
        lines=lines[kept],
        difficulties=np.fromiter((row.difficulty or DEFAULT_DIFFICULTY for row in rows), np.uint8, len(rows))[kept],
        row_weights=np.fromiter((weight for weight, _ in weights), np.float32, len(rows))[kept],
    )


def _reasons(rows: LabelledRows, vocab_size: int) -> npt.NDArray[np.int64]:
    """Return 0 for each usable row, otherwise 1 + the index of its reason in ``SKIPS``."""
    conditions = [rows.lengths < 2, rows.per_row(rows.ids >= vocab_size) > 0, rows.targets() == 0]
    return np.select(conditions, [1, 2, 3], 0)


@dataclass(slots=True)
class Tally:
    """Counts of the rows so far; the size does not grow with the file.

    Attributes:
        unknown_id: the first token id without a row in the embedding.
    """

    rows: int = 0
    tokens: int = 0
    supervised: int = 0
    truncated_rows: int = 0
    truncated_tokens: int = 0
    weighted: int = 0
    clamped: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    skipped_lines: list[int] = field(default_factory=list)
    unknown_id: int | None = None

    @property
    def lost(self) -> int:
        """Rows that were left out."""
        return sum(self.skipped.values())

    def add(
        self,
        whole: npt.NDArray[np.int64],
        cut: LabelledRows,
        lines: npt.NDArray[np.int64],
        reasons: npt.NDArray[np.int64],
    ) -> None:
        kept = reasons == 0
        lost = (whole - cut.lengths)[kept]
        self.rows += int(kept.sum())
        self.tokens += int(cut.lengths[kept].sum())
        self.supervised += int(cut.targets()[kept].sum())
        self.truncated_rows += int((lost > 0).sum())
        self.truncated_tokens += int(lost.sum())
        for number, reason in enumerate(SKIPS, start=1):
            self.skipped[reason] += int((reasons == number).sum())
        room = MAX_SKIPPED_LINES - len(self.skipped_lines)
        self.skipped_lines += itertools.islice(lines[~kept].tolist(), room)

    def refuse(self, line: int) -> None:
        self.skipped[REFUSED] += 1
        if len(self.skipped_lines) < MAX_SKIPPED_LINES:
            self.skipped_lines.append(line)

    def add_weights(self, weights: list[tuple[float, bool]]) -> None:
        self.weighted += sum(weight != 1.0 for weight, _ in weights)
        self.clamped += sum(clamped for _, clamped in weights)

    def report(self, labeller: Labeller) -> PreparationReport:
        return PreparationReport(
            rows=self.rows,
            tokens=self.tokens,
            supervised_tokens=self.supervised,
            truncated_rows=self.truncated_rows,
            truncated_tokens=self.truncated_tokens,
            skipped={reason: self.skipped[reason] for reason in (*SKIPS, REFUSED)},
            skipped_lines=self.skipped_lines,
            trajectory_weighted=self.weighted,
            trajectory_clamped=self.clamped,
            tokenizer=labeller.library,
        )


def refused_rows(tally: Tally, labeller: Labeller, contract: FineTuneContract, vocab_size: int) -> DatasetInvalid:
    """Return the error for rows that cannot be trained on, by the most frequent reason."""
    lines = format_line_numbers(tally.skipped_lines)
    count = f"{tally.lost} of {tally.rows + tally.lost} rows that were read"
    details = {"skipped": dict(tally.skipped), "lines": tally.skipped_lines}
    if tally.unknown_id is not None and tally.skipped["token_id_oob"] * 2 >= tally.lost:
        token = labeller.token(tally.unknown_id)
        return DatasetInvalid(
            Code.EMBEDDING_ROW_MISSING,
            f"{count} have tokens that the base's embedding ({vocab_size} rows) has no row for, such as {token!r}"
            f" (id {tally.unknown_id}): lines {lines}.",
            remedy=(
                "Resize the base's embedding to its tokenizer and add the base again, or remove the token from the "
                "rows."
            ),
            param="data.train_file",
            details=details,
        )
    return DatasetInvalid(
        Code.NOTHING_SUPERVISED,
        f"{count} have no assistant token to learn within {contract.exec.seq_len} tokens: lines {lines}.",
        remedy="Raise exec.seq_len, or give the assistant's turns content.",
        param="data.train_file",
        details=details,
    )


def _refuse_losses(report: PreparationReport, contract: FineTuneContract) -> None:
    """Refuse a file of which more rows were skipped than the contract allows.

    Raises:
        DatasetInvalid: ``SKIP_RATE_EXCEEDED``.
    """
    skipped, limit = sum(report.skipped.values()), contract.exec.qlora_max_skip_rate
    attempted = report.rows + skipped
    if limit is None or skipped <= limit * attempted:
        return
    raise DatasetInvalid(
        Code.SKIP_RATE_EXCEEDED,
        f"{skipped} of {attempted} rows cannot be trained on, more than exec.qlora_max_skip_rate ({limit:g}): "
        f"lines {format_line_numbers(report.skipped_lines)}.",
        remedy="Correct those rows, or raise exec.qlora_max_skip_rate.",
        param="exec.qlora_max_skip_rate",
        details={"attempted": attempted, "skipped": report.skipped, "lines": report.skipped_lines},
    )

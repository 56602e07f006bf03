"""Prepared rows on disk: flat arrays in a folder whose name is a digest of everything that decides their content.

A folder appears complete or not at all (written next to its place, then renamed), and is used only if every file has
the size that ``prepared.json`` records; otherwise it is created again. All arrays are raw and little-endian, read
through memory maps.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, overload

import numpy as np
import numpy.typing as npt

FORMAT_VERSION = 3
INDEX_NAME = "prepared.json"
MAX_SKIPPED_LINES = 100
# A try fails only if another process takes the place at the same moment.
RENAME_ATTEMPTS = 8
ABANDONED_SECONDS = 86_400.0
"""Age at which a half-written folder counts as left by a killed process."""
FIELDS: Final = {
    "ids": "<u4",
    "weights": "<f4",
    "starts": "<i8",
    "lines": "<i8",
    "difficulties": "|u1",
    "row_weights": "<f4",
}
MARKED_TOKENS = 8
MARK_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier of marks; it is odd, so that no bit of a mark is lost when the next token is added."""
TokenizerName = Literal["tokenizers", "fastokens"]


@dataclass(frozen=True, slots=True)
class PreparationReport:
    """Outcome of preparing a file's rows.

    Attributes:
        rows: rows that can be trained on.
        tokens: tokens of these rows, after truncation.
        supervised_tokens: positions of these rows with a weight over 0.
        truncated_rows: number of rows that lost their beginning.
        truncated_tokens: number of tokens lost that way.
        skipped: rows left out, by reason: ``no_supervised_positions``, ``short_seq``, ``token_id_oob``, and in lenient
            mode ``template_refused``.
        skipped_lines: line numbers of the first ``MAX_SKIPPED_LINES`` of them.
        trajectory_weighted: rows whose own weight is not 1.
        trajectory_clamped: rows whose own weight was clamped to its bounds.
        cached: whether everything came from the cache.
        seconds: duration of this call.
        tokenizer: the library that made the ids.
    """

    rows: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    truncated_rows: int = 0
    truncated_tokens: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    skipped_lines: list[int] = field(default_factory=list)
    trajectory_weighted: int = 0
    trajectory_clamped: int = 0
    cached: bool = False
    seconds: float = 0.0
    tokenizer: TokenizerName = "tokenizers"


@dataclass(frozen=True, slots=True)
class Row:
    """One encoded row.

    Attributes:
        line: 1-based line in its file.
        ids: uint32, (tokens,).
        weights: float32, (tokens,): loss weight of each token as a target; 0 is not supervised. ``weights[0]`` is
            always 0, since nothing predicts the first token.
        difficulty: 1 to 10; 5 when the row has none.
        weight: weight of the whole row.
    """

    line: int
    ids: npt.NDArray[np.uint32]
    weights: npt.NDArray[np.float32]
    difficulty: int
    weight: float

    @property
    def targets(self) -> int:
        """Positions that carry loss."""
        return int(np.count_nonzero(self.weights))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence computed for the row: one sequence."""
        return (len(self.ids),)

    @property
    def weight_sum(self) -> float:
        """Sum of the tokens' weights, without the row's own."""
        return float(self.weights.sum(dtype=np.float64))

    @property
    def answer(self) -> Row:
        """The row itself: its answer is the one that the adapter should give."""
        return self

    @property
    def is_wanted(self) -> bool:
        """True: its answer is one that the adapter should give."""
        return True

    def unweighted(self) -> Row:
        """Return the row without its own weight, as validation uses it."""
        return replace(self, weight=1.0)


class PreparedRows(Sequence[Row]):
    """The rows of a folder, memory-mapped and read-only.

    Attributes:
        key: digest of everything that decides their content.
        lengths: int64, (rows,): tokens of each row.
        difficulties: uint8, (rows,).
        row_weights: float32, (rows,).
    """

    def __init__(self, folder: Path, report: PreparationReport) -> None:
        self.report, self.key = report, folder.name
        self._arrays = {name: np.memmap(folder / f"{name}.bin", kind, mode="r") for name, kind in FIELDS.items()}
        self._starts = np.array(self._arrays["starts"])
        self.lengths: npt.NDArray[np.int64] = np.diff(self._starts)
        self.difficulties: npt.NDArray[np.uint8] = np.array(self._arrays["difficulties"])
        self.row_weights: npt.NDArray[np.float32] = np.array(self._arrays["row_weights"])

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self._row(number) for number in range(*index.indices(len(self)))]
        return self._row(range(len(self))[index])

    def marks(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return a hash of each row's length and some of its tokens; rows with the same tokens have the same hash."""
        lengths = self.lengths[numbers]
        steps = np.arange(MARKED_TOKENS)
        places = self._starts[numbers, None] + (lengths[:, None] - 1) * steps // (MARKED_TOKENS - 1)
        marks = lengths.astype(np.uint64)
        for tokens in self._arrays["ids"][places].T:
            marks = marks * MARK_FACTOR + tokens
        return marks

    def _row(self, index: int) -> Row:
        arrays, start, end = self._arrays, self._starts[index], self._starts[index + 1]
        return Row(
            int(arrays["lines"][index]),
            np.asarray(arrays["ids"][start:end]),
            np.asarray(arrays["weights"][start:end]),
            int(self.difficulties[index]),
            float(arrays["row_weights"][index]),
        )


class RowWriter:
    """Appends blocks of rows to a folder's files; memory does not grow with the rows."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, contextlib.ExitStack()
        self._open = {name: self._files.enter_context((folder / f"{name}.bin").open("wb")) for name in FIELDS}
        self._tokens = 0
        self._write("starts", np.zeros(1, np.int64))

    def add(self, lengths: npt.NDArray[np.int64], **columns: npt.NDArray[Any]) -> None:
        """Append rows.

        Args:
            lengths: tokens of each row.
            columns: every field of ``FIELDS`` but ``starts``, rows (or their tokens) end to end.
        """
        ends = self._tokens + np.cumsum(lengths)
        self._tokens = int(ends[-1]) if len(ends) else self._tokens
        for name, values in {**columns, "starts": ends}.items():
            self._write(name, values)

    def _write(self, name: str, values: npt.NDArray[Any]) -> None:
        self._open[name].write(np.ascontiguousarray(values, FIELDS[name]).data)

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def finish(self, report: PreparationReport) -> None:
        """Close the files and record their expected sizes."""
        self._files.close()
        sizes = {name: (self._folder / f"{name}.bin").stat().st_size for name in FIELDS}
        index = {"version": FORMAT_VERSION, "sizes": sizes, "report": asdict(report)}
        (self._folder / INDEX_NAME).write_text(json.dumps(index))


def open_prepared(folder: Path) -> PreparedRows | None:
    """Open the rows of a complete folder; return None if it is missing, or does not match its index."""
    try:
        index = json.loads((folder / INDEX_NAME).read_bytes())
        report = PreparationReport(**index["report"])
        is_current = index["version"] == FORMAT_VERSION
        sizes = {name: (folder / f"{name}.bin").stat().st_size for name in FIELDS}
        if not is_current or sizes != index["sizes"] or sizes["starts"] != 8 * (report.rows + 1):
            return None
        # A full cache removes the least recently used folder (docs/retention.md).
        with contextlib.suppress(OSError):  # a read-only cache
            os.utime(folder / INDEX_NAME)
        return PreparedRows(folder, replace(report, cached=True))
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to write into, which becomes ``target`` at the end and is removed on failure.

    If several processes create the same folder at once, the first one wins; the others' work is discarded.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target.parent)
    folder = _sibling(target)
    folder.mkdir()
    try:
        yield folder
        _take_place(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _take_place(folder: Path, target: Path) -> None:
    """Rename the folder into its place; an existing complete folder stays, a broken one is replaced."""
    for _ in range(RENAME_ATTEMPTS):
        try:
            folder.rename(target)
        except OSError:
            if open_prepared(target):
                return
            broken = _sibling(target)
            with contextlib.suppress(FileNotFoundError):  # another process was quicker
                target.rename(broken)  # moved away in one step: it must not be visible half removed
            shutil.rmtree(broken, ignore_errors=True)
        else:
            return
    # The last try raises its error.
    folder.rename(target)


def _sibling(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")


def _sweep(cache: Path) -> None:
    """Remove folders that killed processes left behind."""
    for folder in cache.glob(".*.*.*"):
        # Another process may remove the same folder.
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

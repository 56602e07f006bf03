"""One run of a mix, which makes the pieces, decides which rows stay, and writes them range by range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from corpus.filters.contamination import CONTAMINATED
from corpus.filters.duplicates import CODES, DuplicateFinder, RowState, States
from corpus.mixing.mix_file import Mix, recipe_invalid
from corpus.mixing.mix_report import FoundOverlap, Label, MixReport, OutputFile, metadata_of, report_path
from corpus.mixing.mixed_sources import MixedSource, empty_source, method_of, places_in, places_of, plain_lane
from corpus.mixing.piece_rows import MAX_OVERLAPS, MixPiece, PieceTask
from corpus.mixing.pieces import make_piece, rows_path
from corpus.mixing.ranges import PIECES_NAME, STATES_NAME, RangeTask, sorted_range
from corpus.mixing.selection import OutputEnds, find_bounds, hold_out
from corpus.shards import files_together, write_json
from corpus.sources import split_source
from shared.datasets.duplicates import SIMILAR
from shared.datasets.file_parts import ahead
from shared.datasets.report import TYPICAL_ROW_BYTES
from shared.durable_files import sync
from shared.errors import Code, InvalidRequest
from shared.host import disk_errors

RANGE_BYTES = 4 << 20
"""Approximate size of the rows that are sorted at once, in bytes."""
EVALS_NAME = "evals"
METADATA_SUFFIX = ".metadata.json"
T = TypeVar("T")
U = TypeVar("U")


@dataclass(slots=True)
class MixRun:
    """One run of a mix."""

    mix: Mix
    sources: list[MixedSource]
    report: MixReport
    output: Path
    work: Path
    mark: str
    total_bytes: int
    executor: Executor | None

    def run(self) -> None:
        """Make the pieces, decide, and write."""
        finder = self._make_pieces()
        if finder.compared_rows < finder.rows:
            self.report.notes.append(
                _partly_compared(finder.compared_rows, finder.rows, held_out=bool(self.mix.holdout))
            )
        states = finder.states()
        if self.mix.holdout:
            groups = [np.frombuffer(piece.groups, np.uint64) for _, piece in self._pieces()]
            near = None if self.mix.dedup.near is not None else finder.near_pairs()
            hold_out(states, np.concatenate(groups), self.mix.holdout.rows, near)
            if not (states == RowState.HELD_OUT).any():
                raise recipe_invalid(
                    f"No row can be held out: every group (by {self.mix.holdout.by}) has more than "
                    f"{self.mix.holdout.rows:,} rows. Raise "
                    "`holdout.rows`, or group by something smaller, such as `by: path`.",
                    "holdout",
                    None,
                )
        del finder
        self._count_states(states)
        bounds = self._bounds(states)
        if not bounds.rows:
            raise _empty_output(self.report)
        with disk_errors():
            np.save(self.work / STATES_NAME, states)
        report_path(self.output).unlink(missing_ok=True)
        self._write(bounds)

    def _pieces(self) -> Iterator[tuple[int, MixPiece]]:
        return (piece for source in self.sources for piece in source.pieces)

    def _make_pieces(self) -> DuplicateFinder:
        """Make all pieces, and add their rows to the indexes of duplicates in order.

        Raises:
            InvalidRequest: ``CORPUS_SOURCE_EMPTY``.
        """
        # Held-out rows must not have a near duplicate among the other rows, even if near duplicates are kept.
        near = self.mix.dedup.near if self.mix.dedup.near is not None or not self.mix.holdout else SIMILAR
        finder = DuplicateFinder(
            exact=self.mix.dedup.exact, near=near, expected_rows=self.total_bytes // TYPICAL_ROW_BYTES
        )
        for (source, task), made in self._mapped(make_piece, self._tasks(near is not None)):
            source.pieces.append((finder.rows, made))
            finder.add(made.sketched, bytes(made.ratings))
            made.sketched = type(made.sketched)()
            source.report.input_lines += made.lines
            for line, overlap in made.overlaps[: MAX_OVERLAPS - len(self.report.contaminated)]:
                left_out = overlap.score >= CONTAMINATED
                self.report.contaminated.append(FoundOverlap(task.name, task.file, line, left_out, overlap))
            source.report.dropped = dict(Counter(source.report.dropped) + made.dropped)
        for source in self.sources:
            if source.files and not sum(piece.rows for _, piece in source.pieces):
                lines = source.report.input_lines
                source.report.skipped_reason = "no_lines_passed_filters" if lines else "empty_file"
                if self.report.strict and not source.spec.optional:
                    raise empty_source(source.report)
        return finder

    def _tasks(self, near: bool) -> Iterator[tuple[MixedSource, PieceTask]]:
        mix = self.mix
        include = None if mix.include_lanes is None else frozenset(map(plain_lane, mix.include_lanes))
        exclude = frozenset(map(plain_lane, mix.exclude_lanes))
        evals = self.work / EVALS_NAME
        number = 0
        for source in self.sources:
            for path in source.files.files if source.files else ():
                method = method_of(path, source.spec.record_format)
                for part in split_source(path):
                    yield (
                        source,
                        PieceTask(
                            part,
                            method,
                            source.spec.path,
                            path.name,
                            self.work / f"piece-{number:06d}",
                            self.mark,
                            mix.seed,
                            source.spec.weight,
                            source.spec.sample_rate,
                            source.spec.record_format,
                            include,
                            exclude,
                            mix.dedup.exact,
                            near,
                            mix.holdout.by if mix.holdout else None,
                            evals if evals.is_dir() else None,
                        ),
                    )
                    number += 1

    def _mapped(
        self, work: Callable[[U], T], tasks: Iterator[tuple[MixedSource, U]]
    ) -> Iterator[tuple[tuple[MixedSource, U], T]]:
        """Run tasks, in worker processes if there are any; results are in order."""
        executor = self.executor
        if executor is None:
            yield from ((task, work(task[1])) for task in tasks)
            return

        def start(task: tuple[MixedSource, U]) -> Future[T]:
            return executor.submit(work, task[1])

        for task, future in ahead(tasks, start):
            yield task, future.result()

    def _count_states(self, states: States) -> None:
        for source in self.sources:
            dropped: Counter[str] = Counter(source.report.dropped)
            for begin, piece in source.pieces:
                counts = np.bincount(states[begin : begin + piece.rows], minlength=len(RowState)).tolist()
                dropped.update({CODES[state]: counts[state] for state in CODES if counts[state]})
            source.report.dropped = {str(code): dropped[code] for code in sorted(dropped)}
        total: Counter[str] = Counter()
        for source in self.sources:
            total.update(source.report.dropped)
        self.report.dropped = dict(sorted(total.items()))

    def _bounds(self, states: States) -> OutputEnds:
        """Return where the output ends; places are read only if a limit applies."""
        shares = [source.spec.max_share for source in self.sources]
        if self.mix.max_rows is None and not any(shares):
            return OutputEnds(int((states == RowState.KEPT).sum()), None, (None,) * len(shares))
        return find_bounds([places_in(source, states) for source in self.sources], shares, self.mix.max_rows)

    def _write(self, bounds: OutputEnds) -> None:
        places = places_of(self.output)
        counts: Counter[tuple[int, bool, Label]] = Counter()
        sizes: Counter[int] = Counter()
        count_of_files = len(places) if self.mix.holdout else 2
        with files_together(places[:count_of_files], obsolete=places[count_of_files:]) as files:
            for _, made in self._mapped(sorted_range, ((self.sources[0], task) for task in self._ranges(bounds))):
                for file, data in zip(files, made.contents, strict=False):
                    file.write(data)
                counts.update(made.counts)
                sizes.update(made.sizes)
        self._finish_report(counts, sizes)
        rows = [self.report.total_emitted] * 2 + [self.report.total_held_out] * 2
        written = [
            OutputFile(file.path.name, file.sha256, count, file.bytes) for file, count in zip(files, rows, strict=False)
        ]
        metadata = self.output.with_name(self.output.stem + METADATA_SUFFIX)
        write_json(metadata, metadata_of(self.mix.seed, written, counts))
        self.report.files = written
        write_json(report_path(self.output), self.report)
        with disk_errors():
            sync(self.output.parent)

    def _ranges(self, bounds: OutputEnds) -> Iterator[RangeTask]:
        total = sum(rows_path(piece.target).stat().st_size for _, piece in self._pieces())
        count = max(1, ceil(total / RANGE_BYTES))
        edges = [number * (1 << 64) // count for number in range(count + 1)]
        pieces = [
            (number, begin, piece.target, tuple(piece.labels))
            for number, source in enumerate(self.sources)
            for begin, piece in source.pieces
        ]
        with disk_errors():
            (self.work / PIECES_NAME).write_bytes(
                msgspec.json.encode([(number, begin, str(target), labels) for number, begin, target, labels in pieces])
            )
        for low, high in pairwise(edges):
            yield RangeTask(low, high, self.work, bounds)

    def _finish_report(self, counts: Counter[tuple[int, bool, Label]], sizes: Counter[int]) -> None:
        for (number, is_held_out, _), rows in counts.items():
            source = self.report.sources[number]
            if is_held_out:
                source.held_out += rows
            else:
                source.emitted_lines += rows
        report = self.report
        report.total_emitted = sum(source.emitted_lines for source in report.sources)
        report.total_held_out = sum(source.held_out for source in report.sources)
        for number, source in enumerate(report.sources):
            source.share_of_output = round(source.emitted_lines / max(1, report.total_emitted), 6)
            source.share_of_bytes = round(sizes[number] / max(1, sizes.total()), 6)


def _partly_compared(compared: int, rows: int, *, held_out: bool) -> str:
    sides = " and may be on both sides of the holdout" if held_out else ""
    return (
        f"Near duplicates: each of the {rows:,} rows was compared only with the first {compared:,} rows; near "
        f"duplicates among the later rows stay{sides}."
    )


def _empty_output(report: MixReport) -> InvalidRequest:
    why = ", ".join(f"{code} {rows:,}" for code, rows in report.dropped.items()) or "no source contributes a row"
    return InvalidRequest(
        Code.CORPUS_OUTPUT_EMPTY,
        f"The mix would be empty: {why}. Nothing was written.",
        remedy=(
            "Check lanes, weights, holdout and shares: a source with a `max_share` needs rows from a source without "
            "one."
        ),
        details={"dropped": report.dropped},
    )

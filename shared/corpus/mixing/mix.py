"""Mix sources into one training file.

    1  each part of a source becomes a piece (`pieces.py`): the rows that its weight keeps, sorted by their place
    2  duplicates, held-out rows and shares are decided on fingerprints and places alone
    3  range by range of places, the rows that stay are read from all pieces, sorted and written

Parts go to processes and their results are taken in order; the place of a row depends on seed and id alone. So the output is
the same for any number of processes. The report is removed first and written last: a mix without it is not finished.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.contract.choices import MethodType
from shared.corpus.claims import claimed
from shared.corpus.filters.contamination import CONTAMINATED, EvalContent, EvalIndex, loaded, read_items
from shared.corpus.filters.duplicates import CODES, DuplicateFinder, RowState, States
from shared.corpus.keys import stage_key, stage_mark
from shared.corpus.mixing.mix_file import Mix, MixSource, recipe_invalid
from shared.corpus.mixing.mix_report import (
    FoundOverlap,
    MixReport,
    OutputFile,
    SourceReport,
    is_current,
    read_report,
    report_path,
)
from shared.corpus.mixing.pieces import MAX_OVERLAPS, Label, MixPiece, PieceTask, make_piece, rows_path
from shared.corpus.mixing.record_formats import ORIGINAL_PREFIX, RecordFormat
from shared.corpus.mixing.selection import OutputEnds, find_bounds, hold_out
from shared.corpus.shards import PartialFile, read_index, sources_path, sync_folder, write_json
from shared.corpus.sources import SourceFiles, find_files, split_source
from shared.datasets.duplicates import SIMILAR
from shared.datasets.file_parts import ahead, reading_processes
from shared.datasets.forms.recognition import method_of_file
from shared.datasets.report import TYPICAL_ROW_BYTES
from shared.errors import Code, InvalidRequest, NotFound
from shared.host import disk_errors

VERSION = 1
"""Raised when an equal mix of equal sources would give other bytes."""
RANGE_BYTES = 4 << 20
"""About the bytes of the rows that are sorted at once."""
EVALS_NAME = "evals"
WORK_SUFFIX = ".mix_work"
METADATA_SUFFIX = ".metadata.json"
VALIDATION_SUFFIX = ".validation.jsonl"
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class MixResult:
    """Outcome of a mix.

    Attributes:
        unchanged: whether the output existed, made from the same inputs, and nothing was written.
    """

    report: MixReport
    output: Path
    unchanged: bool


@dataclass(slots=True)
class _Source:
    """A source, its report, and the pieces that were made of it, each with the number of its first row."""

    spec: MixSource
    report: SourceReport
    files: SourceFiles | None = None
    pieces: list[tuple[int, MixPiece]] = field(default_factory=list)


def run_mix(
    mix: Mix,
    config: Path,
    *,
    root: Path | None = None,
    strict: bool = True,
    evals: Sequence[EvalContent] = (),
    dry_run: bool = False,
) -> MixResult:
    """Mix the sources of a mix file, and write output, provenance, metadata and report.

    Args:
        config: the mix file's path, for the report.
        root: folder that paths in the mix file start from; the mix file's own folder by default.
        evals: whose items must not be in the output, with those of the files that the mix names.
        strict: whether a missing or empty source that is not optional is an error. An empty output always is one.

        dry_run: whether to return before anything is written.

    Raises:
        NotFound: ``CORPUS_SOURCE_MISSING``.
        InvalidRequest: ``CORPUS_RECIPE_INVALID``, ``CORPUS_SOURCE_EMPTY``, ``CORPUS_OUTPUT_EMPTY``.
        ArtifactInvalid: ``CORPUS_SHARD_CHANGED``.
        Conflict: ``CORPUS_BUSY``.
    """
    folder = root or config.parent
    output = Path(os.path.normpath(folder / mix.output))
    # Before the report is read, which another mix would change.
    with ExitStack() as stack:
        if not dry_run:
            stack.enter_context(claimed(output, is_folder=False))
        return _mix(mix, config, folder, output, strict=strict, evals=evals, dry_run=dry_run)


def _mix(
    mix: Mix, config: Path, folder: Path, output: Path, *, strict: bool, evals: Sequence[EvalContent], dry_run: bool
) -> MixResult:
    sources = [_found(spec, folder, strict=strict) for spec in mix.sources]
    for source in sources:
        _refuse_own_output(source, output)
    files = mix.decontaminate.files if mix.decontaminate else []
    unwanted = [*(read_items(folder / name) for name in files), *evals]
    settings = mix.model_dump(mode="json", exclude={"output"}) | {"evals": [one.digest() for one in unwanted]}
    report = MixReport(
        config_path=str(config),
        output_path=mix.output,
        strict=strict,
        config_fingerprint=stage_key("mix", VERSION, settings, {}),
        sources=[source.report for source in sources],
    )
    if is_current(before := read_report(report_path(output)), report, output.parent):
        assert before is not None
        return MixResult(before, output, unchanged=True)
    if dry_run:
        return MixResult(report, output, unchanged=False)
    key = stage_key("mix", VERSION, settings, {str(n): s.files.fingerprint for n, s in enumerate(sources) if s.files})
    work = output.with_name(output.stem + WORK_SUFFIX)
    with disk_errors():
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
    try:
        total = sum(source.files.bytes for source in sources if source.files)
        # The processes first: they are forked, and fingerprints would start threads.
        with reading_processes(total) as executor:
            if unwanted:
                EvalIndex.of(unwanted).save(work / EVALS_NAME)
            _Mixer(mix, sources, report, output, work, stage_mark("mix", key), total, executor).run()
    finally:
        shutil.rmtree(work, ignore_errors=True)
        loaded.cache_clear()  # the next mix may have another index in the same place
    return MixResult(report, output, unchanged=False)


def _found(spec: MixSource, folder: Path, *, strict: bool) -> _Source:
    """Find a source's files.

    Raises:
        NotFound: ``CORPUS_SOURCE_MISSING``.
    """
    form = spec.record_format.value if spec.record_format else None
    report = SourceReport(path=spec.path, weight=spec.weight, optional=spec.optional, record_format=form)
    if spec.weight <= 0:
        report.skipped_reason = "weight_zero"
        return _Source(spec, report)
    files = find_files(folder / spec.path)
    if files is None:
        if strict and not spec.optional:
            raise NotFound(
                Code.CORPUS_SOURCE_MISSING,
                f"The source {spec.path} does not exist, or is a folder without JSONL files ({folder / spec.path}).",
                remedy="Correct `path`, which starts at the mix file's folder (--root changes it), set `optional: true`, or pass "
                "--allow-missing-sources.",
                param="sources",
            )
        report.skipped_reason = "missing_file_optional" if spec.optional else "missing_file"
        return _Source(spec, report)
    report.resolved_path, report.source_fingerprint = str(files.path), files.fingerprint
    report.repeats = ceil(spec.weight)
    return _Source(spec, report, files)


def _refuse_own_output(source: _Source, output: Path) -> None:
    """Refuse a mix that would replace its source, or that the next mix would read as one.

    Raises:
        InvalidRequest: ``CORPUS_RECIPE_INVALID``.
    """
    if source.files is None:
        return
    written = {path.resolve() for path in _places_of(output)}
    is_folder = source.files.path.is_dir() and read_index(source.files.path) is None
    if (is_folder and source.files.path.resolve() == output.resolve().parent) or any(
        path.resolve() in written for path in source.files.files
    ):
        raise recipe_invalid(
            f"The source {source.spec.path} and the output are the same file, or are in the same folder: {output}. Write the output "
            "into another folder.",
            "output",
            None,
        )


def _places_of(output: Path) -> list[Path]:
    """Return the places of the output, its provenance, the validation file and its provenance."""
    validation = output.with_name(output.stem + VALIDATION_SUFFIX)
    return [output, sources_path(output), validation, sources_path(validation)]


@dataclass(slots=True)
class _Mixer:
    """One run of a mix."""

    mix: Mix
    sources: list[_Source]
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
                    f"No row can be held out: each group by {self.mix.holdout.by} has more than {self.mix.holdout.rows:,} rows. Raise "
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
            np.save(self.work / "states.npy", states)
        report_path(self.output).unlink(missing_ok=True)
        self._write(bounds)

    def _pieces(self) -> Iterator[tuple[int, MixPiece]]:
        return (piece for source in self.sources for piece in source.pieces)

    def _make_pieces(self) -> DuplicateFinder:
        """Make all pieces, and add their rows to the indexes of duplicates in order.

        Raises:
            InvalidRequest: ``CORPUS_SOURCE_EMPTY``.
        """
        # Held-out rows must not have a near duplicate among the others, wherever near duplicates stay.
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
                    raise _empty_source(source.report)
        return finder

    def _tasks(self, near: bool) -> Iterator[tuple[_Source, PieceTask]]:
        mix = self.mix
        include = None if mix.include_lanes is None else frozenset(map(_plain_lane, mix.include_lanes))
        exclude = frozenset(map(_plain_lane, mix.exclude_lanes))
        evals = self.work / EVALS_NAME
        number = 0
        for source in self.sources:
            for path in source.files.files if source.files else ():
                method = _method_of(path, source.spec.record_format)
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
                            near,
                            mix.holdout.by if mix.holdout else None,
                            evals if evals.is_dir() else None,
                        ),
                    )
                    number += 1

    def _mapped(
        self, work: Callable[[U], T], tasks: Iterator[tuple[_Source, U]]
    ) -> Iterator[tuple[tuple[_Source, U], T]]:
        """Do tasks, in processes if there are some; results come in order."""
        executor = self.executor
        if executor is None:
            yield from ((task, work(task[1])) for task in tasks)
            return

        def start(task: tuple[_Source, U]) -> Future[T]:
            return executor.submit(work, task[1])

        for task, future in ahead(tasks, start):
            yield task, future.result()

    def _count_states(self, states: States) -> None:
        for source in self.sources:
            found: Counter[str] = Counter(source.report.dropped)
            for begin, piece in source.pieces:
                counts = np.bincount(states[begin : begin + piece.rows], minlength=len(RowState)).tolist()
                found.update({CODES[state]: counts[state] for state in CODES if counts[state]})
            source.report.dropped = {str(code): found[code] for code in sorted(found)}
        total: Counter[str] = Counter()
        for source in self.sources:
            total.update(source.report.dropped)
        self.report.dropped = dict(sorted(total.items()))

    def _bounds(self, states: States) -> OutputEnds:
        """Return where the output ends; places are read only if something limits it."""
        shares = [source.spec.max_share for source in self.sources]
        if self.mix.max_rows is None and not any(shares):
            return OutputEnds(int((states == RowState.KEPT).sum()), None, (None,) * len(shares))
        return find_bounds([_places(source, states) for source in self.sources], shares, self.mix.max_rows)

    def _write(self, bounds: OutputEnds) -> None:
        places = _places_of(self.output)
        counts: Counter[tuple[int, bool, Label]] = Counter()
        sizes: Counter[int] = Counter()
        with ExitStack() as stack:
            # They get their names in the opposite order, the output last.
            files = [stack.enter_context(PartialFile(path)) for path in (places if self.mix.holdout else places[:2])]
            for _, made in self._mapped(_sorted_range, ((self.sources[0], task) for task in self._ranges(bounds))):
                for file, data in zip(files, made.contents, strict=False):
                    file.write(data)
                counts.update(made.counts)
                sizes.update(made.sizes)
        if not self.mix.holdout:
            for path in places[2:]:
                path.unlink(missing_ok=True)
        self._finish_report(counts, sizes)
        rows = [self.report.total_emitted] * 2 + [self.report.total_held_out] * 2
        written = [
            OutputFile(file.path.name, file.sha256, count, file.bytes) for file, count in zip(files, rows, strict=False)
        ]
        metadata = self.output.with_name(self.output.stem + METADATA_SUFFIX)
        write_json(metadata, _metadata(self.mix, written, counts))
        self.report.files = written
        write_json(report_path(self.output), self.report)
        with disk_errors():
            sync_folder(self.output.parent)

    def _ranges(self, bounds: OutputEnds) -> Iterator[_RangeTask]:
        total = sum(rows_path(piece.target).stat().st_size for _, piece in self._pieces())
        count = max(1, ceil(total / RANGE_BYTES))
        edges = [number * (1 << 64) // count for number in range(count + 1)]
        pieces = [
            (number, begin, piece.target, tuple(piece.labels))
            for number, source in enumerate(self.sources)
            for begin, piece in source.pieces
        ]
        with disk_errors():
            (self.work / "pieces.json").write_bytes(
                msgspec.json.encode([(number, begin, str(target), labels) for number, begin, target, labels in pieces])
            )
        for low, high in pairwise(edges):
            yield _RangeTask(low, high, self.work, bounds)

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


@dataclass(frozen=True, slots=True)
class _RangeTask:
    """A range of places, low included, that is read from all pieces."""

    low: int
    high: int
    work: Path
    bounds: OutputEnds


@dataclass(frozen=True, slots=True)
class _SortedRange:
    """The rows of a range: of output, its provenance, validation file and its provenance; and their counts.

    Attributes:
        counts: rows by source, whether they are held out, and labels.
        sizes: bytes of the output's rows by source.
    """

    contents: tuple[bytes, bytes, bytes, bytes]
    counts: Counter[tuple[int, bool, Label]]
    sizes: Counter[int]


def _sorted_range(task: _RangeTask) -> _SortedRange:
    """Read the rows of a range from all pieces, and sort those that stay."""
    states: States = np.load(task.work / "states.npy", mmap_mode="r")
    pieces = msgspec.json.decode((task.work / "pieces.json").read_bytes())
    rows: list[tuple[int, int, int, bool, bytes, bytes]] = []
    counts: Counter[tuple[int, bool, Label]] = Counter()
    sizes: Counter[int] = Counter()
    for number, first_row, target, labels in pieces:
        piece = MixPiece(Path(target))
        index = piece.entries()
        if not len(index):
            continue
        low, high = np.searchsorted(index["key"], np.array([task.low, task.high - 1], np.uint64), "left")
        high = np.searchsorted(index["key"], np.uint64(task.high - 1), "right")
        entries = np.array(index[low:high])
        if not len(entries):
            continue
        state = states[first_row + entries["row"].astype(np.int64)]
        held_out = (state == RowState.HELD_OUT) & (entries["copy"] == 0)
        kept = state == RowState.KEPT
        for end in (task.bounds.all, task.bounds.by_source[number]):
            if end is not None:
                kept &= entries["key"] < np.uint64(end)
        with rows_path(piece.target).open("rb") as file:
            begin = int(entries["begin"][0])
            file.seek(begin)
            last = entries[-1]
            content = file.read(int(last["begin"]) + int(last["size"]) + int(last["origin_size"]) - begin)
        chosen = np.flatnonzero(kept | held_out)
        for entry, is_held_out in zip(entries[chosen].tolist(), held_out[chosen].tolist(), strict=True):
            key, start, row, size, origin_size, copy, label = entry
            middle = start - begin + size
            line, origin = content[start - begin : middle], content[middle : middle + origin_size]
            rows.append((key, first_row + row, copy, is_held_out, line, origin))
            counts[number, is_held_out, tuple(labels[label])] += 1
            if not is_held_out:
                sizes[number] += size
    rows.sort(key=lambda row: row[:3])
    trained, validated = ([row for row in rows if row[3] is side] for side in (False, True))
    contents = (
        b"".join(row[4] for row in trained),
        b"".join(row[5] for row in trained),
        b"".join(row[4] for row in validated),
        b"".join(row[5] for row in validated),
    )
    return _SortedRange(contents, counts, sizes)


def _places(source: _Source, states: States) -> NDArray[np.uint64]:
    """Return the places of a source's rows that are kept."""
    found = [np.empty(0, np.uint64)]
    for begin, piece in source.pieces:
        entries = piece.entries()
        kept = states[begin + entries["row"].astype(np.int64)] == RowState.KEPT
        found.append(entries["key"][kept])
    return np.concatenate(found)


def _plain_lane(lane: str) -> str:
    return lane.removeprefix(ORIGINAL_PREFIX)


def _method_of(path: Path, form: RecordFormat | None) -> MethodType:
    """Return the training method that the first row of a file is for."""
    if form not in (None, RecordFormat.DPO):
        return MethodType.SUPERVISED
    return method_of_file(path)


def _metadata(mix: Mix, files: Sequence[OutputFile], counts: Counter[tuple[int, bool, Label]]) -> dict[str, Any]:
    """Return the summary of the output that lies next to it."""
    found: dict[str, Counter[str]] = {
        "categories": Counter(),
        "lanes": Counter(),
        "origins": Counter(),
        "ratings": Counter(),
    }
    for (_, is_held_out, label), rows in counts.items():
        if not is_held_out:
            for counter, value in zip(found.values(), label, strict=True):
                counter["(none)" if value is None else str(value)] += rows
    return {
        "schema": 1,
        "seed": mix.seed,
        "files": list(files),
        **{name: dict(sorted(counter.items())) for name, counter in found.items()},
    }


def _empty_source(report: SourceReport) -> InvalidRequest:
    why = ", ".join(f"{code} {rows:,}" for code, rows in report.dropped.items()) or "the weight kept none of its rows"
    what = (
        "it has no lines"
        if report.skipped_reason == "empty_file"
        else f"of {report.input_lines:,} lines none is left: {why}"
    )
    return InvalidRequest(
        Code.CORPUS_SOURCE_EMPTY,
        f"The source {report.path} gives no row: {what}.",
        remedy="Correct the source (`mens data check` names bad lines), the lanes or the weight; set `optional: true`, or pass "
        "--allow-missing-sources.",
        param="sources",
        details={"dropped": report.dropped},
    )


def _partly_compared(compared: int, rows: int, *, held_out: bool) -> str:
    sides = " and may be on both sides of the holdout" if held_out else ""
    return (
        f"Near duplicates: each of the {rows:,} rows was compared with the first {compared:,} rows only; those that are alike among the "
        f"later ones stay{sides}."
    )


def _empty_output(report: MixReport) -> InvalidRequest:
    why = ", ".join(f"{code} {rows:,}" for code, rows in report.dropped.items()) or "no source gives a row"
    return InvalidRequest(
        Code.CORPUS_OUTPUT_EMPTY,
        f"The mix would be empty: {why}. Nothing was written.",
        remedy="Check lanes, weights, holdout and shares: each `max_share` needs rows of a source without one.",
        details={"dropped": report.dropped},
    )

"""Sources of a mix: their files, the handling of missing or empty ones, and the pieces made from each."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from corpus.file_digests import DigestOf
from corpus.filters.duplicates import RowState, States
from corpus.mixing.mix_file import MixSource, recipe_invalid
from corpus.mixing.mix_report import SourceReport
from corpus.mixing.piece_rows import MixPiece
from corpus.mixing.record_formats import ORIGINAL_PREFIX, RecordFormat
from corpus.shards import read_index, sources_path
from corpus.sources import SourceFiles, find_files
from shared.contract.choices import MethodType
from shared.datasets.forms.recognition import method_of_file
from shared.errors import Code, InvalidRequest, NotFound

VALIDATION_SUFFIX = ".validation.jsonl"


@dataclass(slots=True)
class MixedSource:
    """A source, its report, and the pieces made from it, each with the number of its first row."""

    spec: MixSource
    report: SourceReport
    files: SourceFiles | None = None
    pieces: list[tuple[int, MixPiece]] = field(default_factory=list)


def find_source(spec: MixSource, folder: Path, *, strict: bool, digest: DigestOf) -> MixedSource:
    """Find a source's files.

    Raises:
        NotFound: ``CORPUS_SOURCE_MISSING``.
    """
    form = spec.record_format.value if spec.record_format else None
    report = SourceReport(path=spec.path, weight=spec.weight, optional=spec.optional, record_format=form)
    if spec.weight <= 0:
        report.skipped_reason = "weight_zero"
        return MixedSource(spec, report)
    files = find_files(folder / spec.path, digest)
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
        return MixedSource(spec, report)
    report.resolved_path, report.source_fingerprint = str(files.path), files.fingerprint
    report.repeats = ceil(spec.weight)
    return MixedSource(spec, report, files)


def refuse_own_output(source: MixedSource, output: Path) -> None:
    """Refuse an output that would replace a source, or that the next mix would read as a source.

    Raises:
        InvalidRequest: ``CORPUS_RECIPE_INVALID``.
    """
    if source.files is None:
        return
    written = {path.resolve() for path in places_of(output)}
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


def places_of(output: Path) -> list[Path]:
    """Return the paths of the output, its provenance, the validation file and its provenance."""
    validation = output.with_name(output.stem + VALIDATION_SUFFIX)
    return [output, sources_path(output), validation, sources_path(validation)]


def places_in(source: MixedSource, states: States) -> NDArray[np.uint64]:
    """Return the places of the rows of a source that are kept."""
    places = [np.empty(0, np.uint64)]
    for begin, piece in source.pieces:
        entries = piece.entries()
        kept = states[begin + entries["row"].astype(np.int64)] == RowState.KEPT
        places.append(entries["key"][kept])
    return np.concatenate(places)


def plain_lane(lane: str) -> str:
    return lane.removeprefix(ORIGINAL_PREFIX)


def method_of(path: Path, form: RecordFormat | None) -> MethodType:
    """Return the training method that the first row of a file is for."""
    if form not in (None, RecordFormat.DPO):
        return MethodType.SUPERVISED
    return method_of_file(path)


def empty_source(report: SourceReport) -> InvalidRequest:
    why = ", ".join(f"{code} {rows:,}" for code, rows in report.dropped.items()) or "the weight kept none of its rows"
    what = (
        "it has no lines"
        if report.skipped_reason == "empty_file"
        else f"none of its {report.input_lines:,} lines is left: {why}"
    )
    return InvalidRequest(
        Code.CORPUS_SOURCE_EMPTY,
        f"The source {report.path} contributes no rows: {what}.",
        remedy="Correct the source (`mens data check` names bad lines), the lanes or the weight; set `optional: true`, or pass "
        "--allow-missing-sources.",
        param="sources",
        details={"dropped": report.dropped},
    )

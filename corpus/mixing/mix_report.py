"""The report of a mix, with all fields of the original system's report and the counts that Mens adds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from corpus.file_digests import DigestOf
from corpus.filters.contamination import Overlap

Label = tuple[str | None, str | None, str | None, int | None]
"""A row's category, lane, origin and rating."""
REPORT_SUFFIX = ".mix_report.json"


class SourceReport(msgspec.Struct, kw_only=True):
    """Report of one source.

    Attributes:
        path: path as in the mix file; ``resolved_path`` is where it was found.
        source_fingerprint: SHA-256 of its content.
        input_lines: number of its lines, without blank ones.
        repeats: largest number of copies of a row.
        emitted_lines: number of its rows in the output.
        skipped_reason: why the output has no rows from it.
        share_of_output: 0 to 1, in rows.
        share_of_bytes: the same in bytes.
        held_out: number of rows in the validation file.
        dropped: number of rows left out, by code.
    """

    path: str
    weight: float
    optional: bool
    record_format: str | None
    resolved_path: str | None = None
    source_fingerprint: str | None = None
    input_lines: int = 0
    repeats: int = 0
    emitted_lines: int = 0
    skipped_reason: str | None = None
    share_of_output: float = 0.0
    share_of_bytes: float = 0.0
    held_out: int = 0
    dropped: dict[str, int] = {}


class FoundOverlap(msgspec.Struct, frozen=True):
    """A row that contains part of an eval item.

    Attributes:
        line: the row's line number in a file of its source.
        left_out: whether the part is large enough for the row to be left out.
    """

    source: str
    file: str
    line: int
    left_out: bool
    overlap: Overlap


class OutputFile(msgspec.Struct, frozen=True):
    """A file that a mix wrote."""

    path: str
    sha256: str
    rows: int
    bytes: int


class MixReport(msgspec.Struct, kw_only=True):
    """The report of a mix.

    Attributes:
        config_fingerprint: SHA-256 of the mix with its defaults, and of the version of the code that mixes.
        total_emitted: number of rows in the output.
        total_held_out: number of rows in the validation file.
        dropped: number of rows left out, by code.
        contaminated: the first rows that contain part of an eval item.
        files: the written files.
        notes: notes on the result for the user.
    """

    config_path: str
    output_path: str
    strict: bool
    config_fingerprint: str
    sources: list[SourceReport]
    total_emitted: int = 0
    total_held_out: int = 0
    dropped: dict[str, int] = {}
    contaminated: list[FoundOverlap] = []
    files: list[OutputFile] = []
    notes: list[str] = []


def report_path(output: Path) -> Path:
    """Return the path of an output's report: ``<stem>.mix_report.json``."""
    return output.with_name(output.stem + REPORT_SUFFIX)


def read_report(path: Path) -> MixReport | None:
    """Return a report; None if the file does not exist or is not a report."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=MixReport)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_current(before: MixReport | None, now: MixReport, folder: Path, digest: DigestOf) -> bool:
    """Return whether an earlier mix had the same inputs and its files have not changed since.

    Args:
        now: the report of the new mix before it runs, with the fingerprints of its sources.
        folder: the output's folder.
    """
    if before is None or _inputs(before) != _inputs(now) or not before.files:
        return False
    paths = [(folder / file.path, file) for file in before.files]
    return all(path.is_file() and path.stat().st_size == file.bytes for path, file in paths) and all(
        digest(path) == file.sha256 for path, file in paths
    )


def _inputs(report: MixReport) -> Any:
    return (
        report.config_fingerprint,
        report.output_path,
        report.strict,
        [(source.path, source.source_fingerprint) for source in report.sources],
    )


def metadata_of(seed: int, files: Sequence[OutputFile], counts: Counter[tuple[int, bool, Label]]) -> dict[str, Any]:
    """Return the summary that is written next to the output."""
    counters: dict[str, Counter[str]] = {
        "categories": Counter(),
        "lanes": Counter(),
        "origins": Counter(),
        "ratings": Counter(),
    }
    for (_, is_held_out, label), rows in counts.items():
        if not is_held_out:
            for counter, value in zip(counters.values(), label, strict=True):
                counter["(none)" if value is None else str(value)] += rows
    return {
        "schema": 1,
        "seed": seed,
        "files": list(files),
        **{name: dict(sorted(counter.items())) for name, counter in counters.items()},
    }

"""Converts a file of OpenAI's rows with bounded memory, and accounts for every line.

Lines are first converted independently, in several processes if the file is large (``lines.py``). Then rows are
compared with each other here: a repeated row may be anywhere, so eight bytes are kept for each written row. Unchanged
rows are read from the source again, because transferring them between processes would mean transferring nearly the
whole file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from cli.conversion.file_report import ConversionReport
from cli.conversion.outcomes import ConvertedMethod, DropReason, Markers, Note, RowOptions, RowOutcome
from corpus.filters.rules import RedactionRules
from openai_migration.archive.folder import open_private
from openai_migration.conversion.digests import DigestSet
from openai_migration.conversion.lines import ConvertedPart, LineRules, convert_part, sampled_rows
from openai_migration.conversion.markers import find_markers
from shared.datasets.file_parts import ahead, split_file

MAX_LOSS = 0.05
"""Largest share of a file's lines that may be lost because of images; beyond it, the file is not written."""
READ_BYTES = 1 << 19
PARTS_AHEAD = 4
"""Largest number of converted parts that wait in memory; if all rows of a file change, a part takes 4 MB."""
_IN_TRAINING_FILE = RowOutcome(reason=DropReason.IN_TRAINING_FILE)
_SENT = RowOutcome(reason=DropReason.SENT_TO_THE_OLD_MODEL)


@dataclass(slots=True)
class FileTask:
    """A file to convert.

    Attributes:
        output: file for the rows; next to it, with the suffix ``.report.jsonl``, the outcome of each line.
        trained: digests of the rows of the training files that this file validates.
        redaction: rules applied to each row first.
        held_out: ids of prompts that were sent to the old model and must not be trained on.
    """

    source: Path
    output: Path
    method: ConvertedMethod = ConvertedMethod.SUPERVISED
    options: RowOptions = field(default_factory=RowOptions)
    strip: bool = False
    allow_image_loss: bool = False
    redaction: RedactionRules | None = None
    trained: Sequence[DigestSet] = ()
    held_out: frozenset[str] = frozenset()


def convert_file(
    task: FileTask, progress: Callable[[int], None] = lambda _: None, executor: Executor | None = None
) -> tuple[ConversionReport, DigestSet]:
    """Convert a file; return its report and the digests of its rows. If too many rows would be lost, no file is
    written.

    The file of an earlier conversion is removed first, so a file that exists at the end comes from this conversion.

    Args:
        progress: called with the number of bytes read so far.
        executor: processes that convert parts of the file at once (``reading_processes``); the result is the same.
    """
    task.output.unlink(missing_ok=True)
    markers = find_markers(sampled_rows(task.source))
    strips = task.strip and markers != Markers()
    options = replace(task.options, strip=markers) if strips else task.options
    rules = LineRules(task.method, options, task.redaction, wants_prompts=bool(task.held_out))
    report = ConversionReport(
        str(task.source), task.method, separator=markers.separator, stop=markers.stop, stripped=strips
    )
    seen = DigestSet()
    partial_rows = task.output.with_name(f".{task.output.name}.partial")
    with (
        task.source.open("rb", buffering=0) as source,
        open_private(partial_rows) as rows,
        open_private(report_of(task.output)) as log,
    ):
        for converted in _converted_parts(task.source, rules, executor):
            outcomes, kinds = _compared(converted, task, seen)
            for kind in np.unique(kinds):
                report.count(outcomes[kind], (np.flatnonzero(kinds == kind) + converted.part.first_line).tolist())
            log.write(_account(converted.part.first_line, outcomes, kinds))
            rows.writelines(_rows(source, converted, _written(outcomes)[kinds]))
            progress(converted.part.end)
    if report.drops[DropReason.IMAGE] > MAX_LOSS * report.lines and not task.allow_image_loss:
        partial_rows.unlink()
        report.refused = (
            f"{report.drops[DropReason.IMAGE] / report.lines:.0%} of the lines have images and would be lost"
        )
    else:
        partial_rows.replace(task.output)
        report.output = str(task.output)
    return report, seen


def report_of(output: Path) -> Path:
    """Return the path of the report on each line of a converted file."""
    return output.with_suffix(".report.jsonl")


def _converted_parts(source: Path, rules: LineRules, executor: Executor | None) -> Iterator[ConvertedPart]:
    if executor is None:
        yield from (convert_part(part, rules) for part in split_file(source))
        return
    for _, future in ahead(split_file(source), lambda part: executor.submit(convert_part, part, rules), PARTS_AHEAD):
        yield future.result()


def _compared(converted: ConvertedPart, task: FileTask, seen: DigestSet) -> tuple[list[RowOutcome], NDArray[np.uint32]]:
    """Return the outcomes of lines after comparison with all other lines: the distinct outcomes, and for each line the
    index of its outcome.
    """
    digests, kinds = np.frombuffer(converted.digests, np.uint64), np.frombuffer(converted.kinds, np.uint32).copy()
    by_itself = converted.outcomes
    repeated_kinds = [replace(outcome, notes=[*outcome.notes, Note.REPEATED]) for outcome in by_itself]
    stays = _written(by_itself)[kinds]
    in_training = stays & np.logical_or.reduce(
        [np.zeros(len(kinds), np.bool_), *(digest_set.has(digests) for digest_set in task.trained)]
    )
    in_held_out = np.zeros(len(kinds), np.bool_)
    in_held_out[[line for line, prompt in converted.prompts.items() if prompt in task.held_out]] = True
    in_held_out &= stays & ~in_training
    stays &= ~(in_training | in_held_out)
    lines = np.flatnonzero(stays)
    repeated = seen.has(digests[lines])
    first = np.zeros(len(lines), np.bool_)
    first[np.unique(digests[lines], return_index=True)[1]] = True
    seen.add(digests[lines])
    kinds[lines[repeated | ~first]] += np.uint32(len(by_itself))
    kinds[in_training], kinds[in_held_out] = 2 * len(by_itself), 2 * len(by_itself) + 1
    return [*by_itself, *repeated_kinds, _IN_TRAINING_FILE, _SENT], kinds


def _written(outcomes: list[RowOutcome]) -> NDArray[np.bool_]:
    """Return, for each outcome, whether the rows of its lines are written."""
    return np.array([not outcome.reason for outcome in outcomes], np.bool_)


def _account(first_line: int, outcomes: list[RowOutcome], kinds: NDArray[np.uint32]) -> bytes:
    """Return the report lines for the lines of a part."""
    texts = [msgspec.json.encode(_described(outcome))[1:] for outcome in outcomes]
    return b"".join([b'{"line":%d,%b\n' % (line, texts[kind]) for line, kind in enumerate(kinds.tolist(), first_line)])


def _described(outcome: RowOutcome) -> dict[str, Any]:
    if outcome.reason:
        return {"outcome": "dropped", "reason": outcome.reason}
    what: dict[str, Any] = {"outcome": "changed" if outcome.changes else "kept", "rows": len(outcome.rows)}
    if outcome.changes:
        what["changes"] = outcome.changes
    if outcome.schemas:
        what["schemas"] = outcome.schemas
    return {**what, "notes": outcome.notes} if outcome.notes else what


def _rows(source: BinaryIO, converted: ConvertedPart, written: NDArray[np.bool_]) -> Iterator[bytes]:
    """Yield the rows of a part in order: rewritten rows, and unchanged lines from the source.

    Args:
        written: for each line, whether its rows are written.
    """
    ends = np.frombuffer(converted.ends, np.uint64)
    begins = np.concatenate(([np.uint64(converted.part.begin)], ends[:-1]))
    stays = written.copy()
    stays[list(converted.rewritten)] = False
    edges = np.flatnonzero(np.diff(np.concatenate(([False], stays, [False])).view(np.int8)))
    pieces: dict[int, bytes | tuple[int, int]] = {
        line: rows for line, rows in converted.rewritten.items() if written[line]
    }
    pieces |= {first: (int(begins[first]), int(ends[end - 1])) for first, end in edges.reshape(-1, 2).tolist()}
    for _, piece in sorted(pieces.items(), key=itemgetter(0)):
        if isinstance(piece, bytes):
            yield piece
        else:
            yield from _read(source, *piece)


def _read(source: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    source.seek(begin)
    while begin < end and (content := source.read(min(end - begin, READ_BYTES))):
        begin += len(content)
        yield content

"""Converts a file of another program into training rows, as a stream, and accounts for every row.

Rows that Mens' reader accepts are kept byte for byte. All others are recognised (``shared.datasets.forms``), read as a
chat (``forms.py``), and then processed by the rules for OpenAI's rows (``rows.py``), so that one mechanism decides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import BinaryIO

import msgspec

from cli.conversion.columns import MOST_COLUMNS, empty_cell, refuse_missing_columns, rename_columns
from cli.conversion.file_report import ConversionReport
from cli.conversion.forms import to_chat
from cli.conversion.outcomes import ConvertedMethod, Dropped, DropReason, Note, Row, RowChange, RowOptions, RowOutcome
from cli.conversion.rankings import best_and_worst
from cli.conversion.reading import Tags
from cli.conversion.rows import convert_row, is_preference
from cli.conversion.sources import SourceFile, SourceRow, open_source, read_rows
from shared.datasets.forms.flags import flag_of
from shared.datasets.forms.recognition import RowForm, recognise
from shared.datasets.preferences.rated import LABEL, RatedRecord, parse_rated
from shared.datasets.preferences.reader import refuse_contradiction
from shared.datasets.preferences.rows import ANSWERS, essence, parse_pair
from shared.datasets.row_validation import FAILURES, decode_line
from shared.datasets.rows import RowCode, RowError
from shared.errors import Code, InvalidRequest

PROGRESS_ROWS = 1_000
_NEVER_KEPT = frozenset(
    {RowForm.SHAREGPT, RowForm.ANTHROPIC, RowForm.BEDROCK, RowForm.GEMINI, RowForm.LOG, RowForm.TEXT, RowForm.RANKING}
)
"""Forms that Mens' reader never accepts, so that rows need not be tried with it."""
_NOTES_OF_CHATS = frozenset({Note.SEVERAL_ANSWERS})
"""Notes that matter for training at OpenAI, but not here."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for reading rows.

    Attributes:
        form: form of every row; None to recognise each.
        columns: names of Mens by the names of the source's columns; other columns are then left out.
        tags: names that a program gives to the parts of a turn.
        options: the user's choices.
        are_all_present: whether each column has to be in the file. A description of LLaMA-Factory also names optional ones.
    """

    form: RowForm | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    tags: Tags = field(default_factory=Tags)
    options: RowOptions = field(default_factory=RowOptions)
    are_all_present: bool = False


class RowAccount(msgspec.Struct, frozen=True, omit_defaults=True):
    """Outcome of one row: a line of the account."""

    line: int
    outcome: str
    form: str = ""
    reason: str = ""
    rows: int = 0
    changes: list[str] = []
    unused_keys: list[str] = []


def convert_file(
    path: Path,
    output: Path,
    rules: Rules,
    *,
    split: str = "",
    account: BinaryIO | None = None,
    strict: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> ConversionReport:
    """Convert a file or folder; ``output`` exists only if the whole file was read and a row was written.

    Args:
        split: the part of a source that has several.
        account: receives a line for each row.
        strict: write nothing if a row is dropped.
        progress: called with the number of rows read so far.
    """
    source = open_source(path, split, is_table=bool(rules.columns))
    report = ConversionReport(str(path), ConvertedMethod.SUPERVISED, file_form=source.form)
    encoder, ratings, columns = msgspec.json.Encoder(), dict[int, tuple[int, bool]](), dict[str, None]()
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as target:
            for row in read_rows(source):
                if row.value is not None and len(columns) < MOST_COLUMNS:
                    columns |= dict.fromkeys(row.value)
                outcome, form, lines = _convert(row, source, rules, encoder)
                if rules.options.as_rated and lines:
                    outcome, lines = _consistent(outcome, lines, report.rows + 1, ratings)
                target.writelines(line + b"\n" for line in lines)
                report.count(outcome, [row.line])
                report.forms[form or "unknown"] += 1
                if account:
                    account.write(encoder.encode(_account(row.line, outcome, form)) + b"\n")
                if report.lines % PROGRESS_ROWS == 0:
                    progress(report.lines)
        report.columns = list(columns)[:MOST_COLUMNS]
        if rules.are_all_present:
            refuse_missing_columns(path, rules.columns, report.columns)
        if strict and report.dropped:
            report.refused = "rows were dropped"
        elif not report.rows:
            report.refused = "no row can be trained on"
        else:
            partial.replace(output)
            report.output = str(output)
    finally:
        partial.unlink(missing_ok=True)
    return report


def _convert(
    row: SourceRow, source: SourceFile, rules: Rules, encoder: msgspec.json.Encoder
) -> tuple[RowOutcome, RowForm | None, list[bytes]]:
    """Return the outcome of a row, its form, and the lines to write."""
    if row.value is None:
        return RowOutcome(reason=row.fault), None, []
    if not (rules.form or rules.columns) and (kept := _kept(row, source, encoder, rules.options)):
        outcome = RowOutcome(rows=[{}])
        if row.had_mark:
            outcome.change(RowChange.BYTE_ORDER_MARK_REMOVED)
        return outcome, RowForm.MESSAGES, [kept]
    mapped, left_out = rename_columns(row.value, rules.columns)
    form = rules.form or recognise(mapped)
    outcome = RowOutcome(unused_keys=left_out)
    try:
        outcome = _outcome(mapped, form, rules, outcome)
        lines = [encoder.encode(converted) for converted in outcome.rows]
    except Dropped as dropped:
        outcome, lines = RowOutcome(reason=dropped.reason), []
    except (*FAILURES, UnicodeEncodeError, OverflowError, TypeError) as error:
        code = RowCode.ROW_LONE_SURROGATE if isinstance(error, UnicodeEncodeError) else RowCode.ROW_FIELD_TYPE
        outcome, lines = RowOutcome(reason=RowCode.ROW_TOO_DEEP if isinstance(error, RecursionError) else code), []
    if row.had_mark and lines:
        outcome.change(RowChange.BYTE_ORDER_MARK_REMOVED)
    return outcome, form, lines


def _consistent(
    outcome: RowOutcome, lines: list[bytes], number: int, earlier: dict[int, tuple[int, bool]]
) -> tuple[RowOutcome, list[bytes]]:
    """Return a row's outcome and the lines to write, without answers that an earlier line rates differently, e.g.
    because a ranking of three answers was written as two pairs.

    Args:
        number: number of the first of the lines in the output.
        earlier: line and rating by answer.
    """
    try:
        records = [record for line in lines if isinstance(record := parse_rated(line).record, RatedRecord)]
    except RowError as error:
        return RowOutcome(reason=error.code), []
    if len(records) > 1 and len({msgspec.json.encode(essence(rated.conversation()[-1])) for rated in records}) == 1:
        return RowOutcome(reason=RowCode.ROW_ANSWERS_EQUAL), []
    agrees: list[bool] = []
    for record in records:
        try:
            refuse_contradiction(record, number + sum(agrees), earlier)
        except RowError:
            agrees.append(False)
        else:
            agrees.append(True)
    if not any(agrees):
        return RowOutcome(reason=RowCode.ROW_LABEL_CONTRADICTS), []
    if not all(agrees):
        outcome.rows = list(compress(outcome.rows, agrees))
        outcome.change(RowChange.CONTRADICTING_ANSWER_DROPPED)
    return outcome, list(compress(lines, agrees))


def _kept(row: SourceRow, source: SourceFile, encoder: msgspec.json.Encoder, options: RowOptions) -> bytes | None:
    """Return the line of a row that Mens' reader accepts unchanged; None for any other. A table's row is always written
    from its parts.
    """
    form = recognise(row.value) if row.value is not None else None
    is_unwanted_pair = form is RowForm.PREFERENCE and not (options.as_rated or options.as_pairs)
    if not source.has_json_rows or form in _NEVER_KEPT or is_unwanted_pair:
        return None
    try:
        line = row.raw if row.raw is not None else encoder.encode(row.value)
        if options.as_rated:
            parse_rated(line)
        elif options.as_pairs:
            parse_pair(line)
        else:
            decode_line(line)
    except (RowError, UnicodeEncodeError, RecursionError):
        return None
    return line


def _outcome(row: Row, form: RowForm | None, rules: Rules, outcome: RowOutcome) -> RowOutcome:
    """Convert a row, and return the resulting rows of the kind that the user asks for.

    Raises:
        Dropped: the row is not converted.
    """
    options = rules.options
    convert = _rated if options.as_rated else _paired if options.as_pairs else _converted
    if form is not RowForm.RANKING:
        return convert(row, form, rules, outcome)
    if not (options.as_rated or options.as_pairs or options.as_supervised):
        raise Dropped(DropReason.RANKING)
    ranked = convert(best_and_worst(row), RowForm.PREFERENCE, rules, outcome)
    if not ranked.reason:
        ranked.change(RowChange.BEST_AND_WORST_TAKEN)
    return ranked


def _converted(row: Row, form: RowForm | None, rules: Rules, outcome: RowOutcome) -> RowOutcome:
    """Return the rows that a row is converted to.

    Raises:
        Dropped: the row is not converted.
    """
    if is_preference(row):
        return convert_row(row, ConvertedMethod.SUPERVISED, rules.options)
    if form is None:
        raise Dropped(empty_cell(row) or DropReason.FORM_UNKNOWN)
    chat = to_chat(row, form, rules.tags, outcome, chosen=rules.options.as_supervised)
    converted = convert_row(chat, ConvertedMethod.SUPERVISED, replace(rules.options, as_supervised=False))
    if converted.reason:
        return converted
    for change in outcome.changes:
        converted.change(change)
    converted.unused_keys = outcome.unused_keys
    converted.notes = [note for note in converted.notes if note not in _NOTES_OF_CHATS]
    return converted


def _rated(row: Row, form: RowForm | None, rules: Rules, outcome: RowOutcome) -> RowOutcome:
    """Return the rated answers that a row is converted to: a rated one with its label, a pair as two, as TRL does.

    Raises:
        Dropped: the row is not converted.
    """
    row = {key.lower(): value for key, value in row.items()}
    label = row.pop(LABEL, None)
    versions = _versions(row)
    if not versions and label in (None, ""):
        raise Dropped(DropReason.NOT_RATED)
    if not versions:
        if (is_good := flag_of(label)) is None:
            raise Dropped(RowCode.ROW_LABEL_INVALID)
        versions = [(row | {LABEL: True}, is_good)]
    rated = []
    for version, is_good in versions:
        chat_outcome = _answered(version, form, rules, outcome)
        if chat_outcome.reason:
            return chat_outcome
        chat_outcome.rows = [chat | {LABEL: is_good} for chat in chat_outcome.rows]
        chat_outcome.changes = [
            change for change in chat_outcome.changes if change is not RowChange.PREFERRED_ANSWER_TAKEN
        ]
        rated.append(chat_outcome)
    first = rated[0]
    first.rows = [chat for chat_outcome in rated for chat in chat_outcome.rows]
    first.change(RowChange.RATED_ANSWERS)
    return first


def _paired(row: Row, form: RowForm | None, rules: Rules, outcome: RowOutcome) -> RowOutcome:
    """Return the pair that a row with two answers is converted to: the prompt as turns, and a turn for each answer.

    Raises:
        Dropped: the row is not converted.
    """
    versions = _versions({key.lower(): value for key, value in row.items()})
    if not versions:
        raise Dropped(DropReason.NOT_A_PREFERENCE)
    preferred, other = (_answered(version, form, rules, outcome) for version, _ in versions)
    if reason := preferred.reason or other.reason:
        return RowOutcome(reason=reason)
    [chosen], [rejected] = preferred.rows, other.rows
    *prompt, answer = chosen.pop("messages")
    *other_prompt, worse = rejected.pop("messages")
    if prompt != other_prompt:
        raise Dropped(RowCode.ROW_PROMPTS_DIFFER)
    preferred.rows = [{"prompt": prompt, "chosen": [answer], "rejected": [worse], **chosen}]
    try:
        parse_pair(msgspec.json.encode(preferred.rows[0]))
    except RowError as error:
        raise Dropped(error.code) from None
    replaced = (RowChange.PREFERRED_ANSWER_TAKEN, RowChange.FORM_TO_CHAT)
    preferred.changes = [change for change in preferred.changes if change not in replaced]
    preferred.change(RowChange.FORM_TO_PAIR)
    return preferred


def _versions(row: Row) -> list[tuple[Row, bool]]:
    """Return a row with two answers, and the same row with the answers exchanged, as good and bad; empty for any other row."""
    for chosen, rejected in ANSWERS:
        if {chosen, rejected} <= row.keys():
            return [(row, True), (row | {chosen: row[rejected], rejected: row[chosen]}, False)]
    return []


def _answered(row: Row, form: RowForm | None, rules: Rules, outcome: RowOutcome) -> RowOutcome:
    """Return the chat with a row's chosen answer, even if the user asks for other kinds of rows."""
    options = replace(rules.options, as_rated=False, as_pairs=False, as_supervised=True)
    fresh = replace(outcome, changes=[], unused_keys=[*outcome.unused_keys])
    return _converted(row, form, replace(rules, options=options), fresh)


def _account(line: int, outcome: RowOutcome, form: RowForm | None) -> RowAccount:
    return RowAccount(
        line,
        outcome.fate,
        form or "",
        outcome.reason,
        len(outcome.rows),
        [str(change) for change in outcome.changes],
        outcome.unused_keys,
    )


def check_output(path: Path, output: Path, *others: Path | None) -> None:
    """Refuse an output that equals the input, or lies inside it.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    source = path.resolve()
    for target in filter(None, (output, *others)):
        resolved = target.resolve()
        if resolved == source or source in resolved.parents:
            message = f"{target} would overwrite the input."
            raise InvalidRequest(Code.REQUEST_INVALID, message, remedy="Name another file.", param="output")

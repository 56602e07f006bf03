"""``mens data convert``: converts another program's file into training rows, and accounts for each row."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.progress import Progress, TextColumn

from cli.client.connection import fail, fail_with
from cli.client.json_errors import Json, print_json_error
from cli.client.uploads import refuse_retracted_rows
from cli.conversion.columns import parse_columns
from cli.conversion.convert import Rules, check_output, convert_file
from cli.conversion.dataset_info import read_dataset_info
from cli.conversion.file_report import ConversionReport
from cli.conversion.outcomes import DropReason, RowOptions
from cli.conversion.sources import FORMS_WITH_LINES
from cli.options import existing_file
from cli.output import plain_console
from shared.counted_nouns import counted
from shared.datasets.forms.advice import list_names
from shared.datasets.forms.recognition import RowForm
from shared.datasets.rows import RowCode
from shared.errors import Code, InvalidRequest, MensError

SHOWN_KEYS = 20
REASONS: dict[str, str] = {
    DropReason.PREFERENCE: "pairs are for `mens train --method dpo`, which reads OpenAI's and TRL's forms; --as-pairs "
    "converts other forms, and --as-supervised takes the chosen answers",
    DropReason.RANKING: "answers with scores; --as-pairs makes a pair of the best and the worst for --method dpo",
    DropReason.NO_ANSWER_BETTER: "all answers have the same score",
    DropReason.NOT_A_PREFERENCE: "the row does not have two answers, one of them preferred",
    DropReason.LABEL_FALSE: "rated as bad answers; --as-rated keeps them for --method kto",
    DropReason.NOT_RATED: "the row has neither a rated answer nor a pair of answers",
    DropReason.TEXT_WITHOUT_TURNS: "text without a known chat markup has no answer to learn",
    DropReason.FORM_UNKNOWN: "unknown form; name the columns: --columns question=prompt,answer=response, or, for a file of LLaMA-Factory, "
    "--dataset-info dataset_info.json",
    DropReason.IMAGE: "images, audio and video cannot be trained on, and the answer depends on them",
    DropReason.AUDIO: "audio cannot be trained on",
    DropReason.OTHER_PART: "a part of the content is not text",
    DropReason.NO_ANSWER: "no assistant turn",
    DropReason.ANSWER_CUT: "the answer ended at the token limit or at a content filter",
    DropReason.FUNCTION_WITHOUT_CALL: "a result of a tool without the call before it",
    DropReason.COLUMNS_DIFFER: "the number of cells differs from the header's",
    DropReason.REFUSAL: "a refusal; --keep-refusals trains on it as the answer",
    RowCode.ROW_EXCLUDED: "its own flag excludes it from training",
}
"""Explanations of reasons; the codes of Mens' reader are in docs/data.md."""


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            exists=True,
            callback=refuse_retracted_rows,
            metavar="INPUT",
            help="JSONL, JSON, CSV, TSV, Parquet or Arrow file, or a folder that `datasets` has saved.",
        ),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="JSONL file to write.")],
    form: Annotated[
        RowForm | None,
        typer.Option("--from", help="Form of all rows. Default: each row's form is detected from its keys."),
    ] = None,
    columns: Annotated[
        str,
        typer.Option(
            help="Meaning of columns (or keys): COLUMN=NAME,… e.g. question=prompt,answer=response. Other columns are dropped."
        ),
    ] = "",
    dataset_info: Annotated[
        Path | None, existing_file("LLaMA-Factory's dataset_info.json, whose entry for INPUT names columns and tags.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the input, if it has several: train, test, …")] = "",
    as_supervised: Annotated[
        bool,
        typer.Option(
            "--as-supervised",
            help="Convert a pair for DPO to a row with its chosen answer. Default: drop it, because DPO needs no conversion.",
        ),
    ] = False,
    as_rated: Annotated[
        bool,
        typer.Option(
            "--as-rated",
            help="Write rows for KTO: rated answers with their label, and a pair for DPO as a good and a bad answer. Default: drop bad "
            "answers.",
        ),
    ] = False,
    as_pairs: Annotated[
        bool,
        typer.Option(
            "--as-pairs",
            help="Write rows for DPO: pairs in other forms, and the best and the worst of a list of answers with scores. Default: drop "
            "them.",
        ),
    ] = False,
    keep_refusals: Annotated[
        bool, typer.Option("--keep-refusals", help="Keep a refusal as the answer's text. Default: drop its row.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write a report to this file: a JSON line for each input row.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="If a row would be dropped, write nothing and exit with code 1.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Convert a file of another program into rows for training, and account for every row of it.

    Reads ShareGPT, Alpaca, question and answer, TRL's prompt and completion, preferences, lists of answers with scores,
    KTO, the chats of Anthropic, Amazon Bedrock and Gemini with their tool calls, logs of requests and responses, texts with chat markup, and LLaMA-Factory's
    data sets. File and rows are recognised by their content; a row that Mens can already read is kept byte for byte. Offline; equal input gives equal output.

    With --as-rated, rows are written for `mens train --method kto`, with --as-pairs for `--method dpo`; all others are dropped.

    Exit code 1 if no row can be trained on (nothing is written then).

    Examples:

      mens data convert sharegpt.json -o rows.jsonl

      mens data convert faq.csv -o rows.jsonl --columns Frage=prompt,Antwort=response

      mens data convert train.parquet -o rows.jsonl --report account.jsonl --json
    """
    if as_rated + as_supervised + as_pairs > 1:
        fail(
            "--as-rated writes rows for KTO, --as-pairs rows for DPO and --as-supervised rows of answers; name one of them."
        )
    try:
        check_output(source, output, report)
        rules = _rules(
            source,
            form,
            columns,
            dataset_info,
            RowOptions(keep_refusals, as_supervised=as_supervised, as_rated=as_rated, as_pairs=as_pairs),
        )
        with ExitStack() as stack:
            bar = stack.enter_context(_progress())
            task = bar.add_task("rows", total=None)
            account = stack.enter_context(report.open("wb")) if report else None
            conversion = convert_file(
                source,
                output,
                rules,
                split=split,
                account=account,
                strict=strict,
                progress=lambda rows: bar.update(task, completed=rows),
            )
    except MensError as error:
        fail_with(error)
    except OSError as error:
        fail(f"{error.filename or output} cannot be read or written: {error.strerror}.")
    refusal = _refusal(conversion, source) if conversion.refused else None
    if as_json and refusal:
        print_json_error(refusal.as_dict() | {"details": msgspec.to_builtins(conversion)})
    elif as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(conversion)).decode())
    else:
        show(conversion, refusal)
    raise typer.Exit(1 if refusal else 0)


def show(conversion: ConversionReport, error: MensError | None) -> None:
    """Print the account of a file, and the next step."""
    forms = ", ".join(f"{form} {rows:,}" for form, rows in conversion.forms.most_common())
    typer.echo(f"{conversion.source}: {conversion.file_form}, {counted(conversion.lines, 'row')} ({forms})")
    typer.echo(f"  {conversion.kept:,} unchanged, {conversion.changed:,} changed, {conversion.dropped:,} dropped")
    place = "line" if conversion.file_form in FORMS_WITH_LINES else "row"
    for title, counts in (("changed", conversion.changes), ("dropped", conversion.drops), ("note", conversion.notes)):
        for rule, count in counts.most_common():
            lines = ", ".join(map(str, conversion.examples[rule]))
            more = ", …" if count > len(conversion.examples[rule]) else ""
            why = f": {REASONS[rule]}" if rule in REASONS else ""
            typer.echo(f"  {title}: {rule}: {count:,} ({place} {lines}{more}){why}")
    if conversion.unused_keys:
        shown = conversion.unused_keys.most_common(SHOWN_KEYS)
        keys = ", ".join(f"{key} ({rows:,})" for key, rows in shown)
        others = len(conversion.unused_keys) - len(shown)
        typer.echo(f"  fields that were dropped: {keys}{f' and {others} more' if others else ''}")
    if error:
        typer.secho(f"not written: {error}", fg=typer.colors.RED, err=True)
    else:
        typer.echo(
            f"{counted(conversion.rows, 'row')} written to {conversion.output}; next: `mens data check {conversion.output}`"
        )


def _refusal(conversion: ConversionReport, source: Path) -> MensError:
    """Return the error for a file that was not written."""
    dropped = f"{counted(conversion.dropped, 'row')} of {conversion.lines:,}"
    reason, count = next(iter(conversion.drops.most_common(1)), ("", 0))
    why = f"; the most common reason ({count:,}) is {reason}" if reason else ""
    if reason == DropReason.FORM_UNKNOWN and conversion.columns:
        why += f", for rows with {list_names('column', conversion.columns)}"
    if conversion.rows:
        message, remedy = f"{dropped} would be dropped{why}.", "Correct these rows, or leave --strict out."
    elif not conversion.lines:
        message, remedy = f"{source} has no rows.", "Name a file that has rows."
    else:
        message = f"None of the {counted(conversion.lines, 'row')} of {source} can be trained on{why}."
        why = REASONS.get(reason, "see docs/data.md for the code")
        remedy = f"{why[0].upper()}{why[1:]}."
    return InvalidRequest(Code.DATASET_EMPTY, message, remedy=remedy, param="input")


def _rules(source: Path, form: RowForm | None, columns: str, dataset_info: Path | None, options: RowOptions) -> Rules:
    if not dataset_info:
        named: Mapping[str, str] = parse_columns(columns) if columns else {}
        return Rules(form, named, options=options, are_all_present=True)
    if columns or form:
        fail("--dataset-info already names the form and the columns; leave --from and --columns out.")
    info = read_dataset_info(dataset_info, source)
    return Rules(info.form, info.columns, info.tags, options)


def _progress() -> Progress:
    errors = plain_console(stderr=True)
    columns = (TextColumn("converting"), TextColumn("{task.completed:,} rows"))
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)

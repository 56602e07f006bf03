"""``mens data check``: finds everything that is wrong with a training file, before training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cli.client.connection import fail, fail_with
from cli.client.json_errors import note_json
from cli.client.remedies import with_file
from cli.client.uploads import refuse_folders, refuse_other_file, training_file
from cli.options import TemplateArgument, parse_template_arguments
from cli.output import line_ranges, plain_console
from shared.base_models.catalog import load_catalog
from shared.contract.choices import DataMode, MethodType, ThoughtsRule
from shared.contract.flat_keys import parse_contract
from shared.contract.plan import validation_split
from shared.contract.sections import ContextFilter, DataSection
from shared.counted_nouns import counted
from shared.datasets.file_parts import reading_processes
from shared.datasets.filters import RowFilter
from shared.datasets.forms.recognition import method_of_file
from shared.datasets.report_types import DataReport, FileReport, LinePair, PreferenceReport
from shared.errors import Code, MensError, Unavailable
from shared.settings import Settings, read_settings

if TYPE_CHECKING:
    from shared.tokenization.supervision_report import SupervisionReport
    from shared.tokenization.template_arguments import ChatOptions

console = plain_console()
errors = plain_console(stderr=True)

SHOWN_PAIRS = 5
CheckedMethod = Literal["supervised", "dpo", "kto"]
ROWS = {MethodType.DPO: "pairs of answers", MethodType.KTO: "rated answers"}


def check(
    file: Annotated[
        Path,
        typer.Argument(exists=True, callback=refuse_other_file, help="JSONL file with the training rows."),
    ],
    validation: Annotated[Path | None, training_file("JSONL file to validate on.")] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip bad lines instead of failing.")] = False,
    quarantine: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write the bad lines to this file, with number, code and reason."),
    ] = None,
    min_rating: Annotated[int, typer.Option(min=0, max=5, help="Drop rows with a lower rating; 0 keeps all.")] = 3,
    category: Annotated[
        list[str] | None, typer.Option(help="Keep only rows whose category contains this text.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Base model: a name in the catalogue, or its folder.")] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(min=8, help="With --model: maximum tokens per row. Default: the limit that a job would use."),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="With --model: number of rows to tokenise.")] = 2000,
    template_argument: TemplateArgument = None,
    thoughts: Annotated[
        ThoughtsRule,
        typer.Option(
            help=(
                "With --model: train on the thoughts of answers (reasoning_content), use them as context only, or "
                "drop them."
            )
        ),
    ] = ThoughtsRule.LEARN,
    method: Annotated[
        CheckedMethod | None,
        typer.Option(help="Training method that the rows are for. Default: detected from the first row."),
    ] = None,
    near: Annotated[bool, typer.Option(help="Find near duplicates too; --no-near is faster.")] = True,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the report as JSON.")] = False,
) -> None:
    """Check a training file: every bad line with number and reason, duplicates, leakage. Exit code 1 if it is unusable."""
    from shared.datasets.report import inspect_file, refusal  # numpy is slow to import

    refuse_folders({"train_file": file, "validation_file": validation})
    if quarantine and any(path and quarantine.resolve() == path.resolve() for path in (file, validation)):
        fail(f"--quarantine {quarantine} would overwrite the data.")
    filters = RowFilter.combine(min_rating, ContextFilter(categories=category))
    total = sum(path.stat().st_size for path in (file, validation) if path)
    options = _chat_options(template_argument, thoughts)
    trained_by = MethodType(method) if method else method_of_file(file)
    try:
        # The processes are created first: they are forks, and the progress bar is a thread.
        with reading_processes(total) as executor, _progress(total) as bar, _opened(quarantine) as target:
            report = inspect_file(
                file,
                validation=validation,
                filters=filters,
                mode=DataMode.LENIENT if lenient else DataMode.STRICT,
                near=near,
                quarantine=target,
                progress=lambda count: bar.advance(bar.task_ids[0], count),
                executor=executor,
                method=trained_by,
            )
    except BrokenProcessPool:
        message = "A process that read the file was killed, perhaps because memory ran out."
        fail_with(Unavailable(Code.PROGRAM_FAILED, message, remedy="Free memory, then try again."))
    supervised = {}
    if model and report.usable:
        for name, path in (("supervision", file), ("validation_supervision", validation)):
            if path:
                supervised[name] = report_supervision(
                    path, model, seq_len, filters, sample, options, lenient=lenient, method=trained_by
                )
    report = _with_paths(report, {"training": file, "validation": validation})
    error = refusal(report, filters) or _label_refusal(report) or _supervision_refusal(supervised, lenient=lenient)
    if error:
        error.remedy = with_file(error.remedy, (error.param == "data.validation_file" and validation) or file)
    if as_json:
        extras = {"error": error and error.as_dict(), "supervision": None} | {
            name: supervision.model_dump(mode="json") for name, supervision in supervised.items()
        }
        typer.echo(json.dumps(report.model_dump(mode="json") | extras, indent=2))
    else:
        if trained_by in ROWS and not method:
            console.print(f"the rows are {ROWS[trained_by]}, so they are checked for --method {trained_by}")
        show(report, file, validation, quarantine)
        for name, supervision in supervised.items():
            show_supervision(supervision, "validation " if name == "validation_supervision" else "")
        console.print(_verdict(report, error), soft_wrap=True)
    raise typer.Exit(1 if error else 0)


def _with_paths(report: DataReport, paths: dict[str, Path | None]) -> DataReport:
    """Return a report whose advice has the paths of the files that it is about."""
    named = {}
    for name, path in paths.items():
        file_report: FileReport | None = getattr(report, name)
        if path and file_report and file_report.advice:
            advice = file_report.advice.model_copy(update={"remedy": with_file(file_report.advice.remedy, path)})
            named[name] = file_report.model_copy(update={"advice": advice})
    return report.model_copy(update=named)


def _label_refusal(report: DataReport) -> MensError | None:
    from shared.datasets.preferences.findings import (  # numpy is slow to import
        refuse_contradictions,
        refuse_one_label,
    )

    try:
        refuse_contradictions(report.training.preferences, "data.train_file")
        refuse_one_label(report.training.rated, "data.train_file")
    except MensError as error:
        return error
    return None


def _supervision_refusal(supervised: dict[str, SupervisionReport], *, lenient: bool) -> MensError | None:
    """Return the error of the first file with a row that the base cannot be trained on."""
    for name, supervision in supervised.items():
        try:
            supervision.refuse("data.train_file" if name == "supervision" else "data.validation_file", lenient=lenient)
        except MensError as error:
            return error
    return None


def _chat_options(options: list[str] | None, thoughts: ThoughtsRule) -> ChatOptions:
    from shared.tokenization.template_arguments import ChatOptions  # jinja2 is slow to import

    try:
        arguments = parse_template_arguments(options) or {}
        return ChatOptions.of(
            parse_contract({"data": {"train_file": "-", "template_arguments": arguments, "thoughts": thoughts}}).data
        )
    except MensError as error:
        fail_with(error)


def report_supervision(
    file: Path,
    model: str,
    seq_len: int | None,
    filters: RowFilter,
    sample: int,
    options: ChatOptions,
    *,
    lenient: bool,
    method: MethodType = MethodType.SUPERVISED,
) -> SupervisionReport:
    """Return the supervision report of a file for a base: which tokens are trained on, by the trainer's own labels."""
    from shared.base_models.hub import locate  # tokenizers and the hub's client are slow to import
    from shared.preflight.sequence_length import length_without_job
    from shared.tokenization.preference_supervision import supervise_preferences
    from shared.tokenization.supervision import supervise_file

    try:
        settings = read_settings(Settings)
        folder = Path(model)
        if not (folder / "tokenizer.json").is_file():
            folder = locate(load_catalog(settings.catalog_path).get(model), settings.catalog_path)
        if seq_len is None:
            seq_len = length_without_job(folder)
        supervise = supervise_file if method is MethodType.SUPERVISED else partial(supervise_preferences, method=method)
        return supervise(
            file, folder, seq_len=seq_len, filters=filters, lenient=lenient, limit_rows=sample, options=options
        )
    except MensError as error:
        fail_with(error)


def show(report: DataReport, file: Path, validation: Path | None, quarantine: Path | None) -> None:
    """Print the report: bad lines, then figures, duplicates and leakage, then notes."""
    for path, file_report in ((file, report.training), (validation, report.validation)):
        if path and file_report and file_report.error_count:
            _show_errors(path.name, file_report)
    if quarantine and report.training.error_count:
        console.print(f"the bad lines of {file.name} are in {quarantine}")
    table = Table("", file.name, *([validation.name] if validation else []))
    columns = [_figures(file_report) for file_report in (report.training, report.validation) if file_report]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    if report.training.rows or (report.validation and report.validation.rows):
        console.print(table)
    _show_pairs("exact duplicates", report.training.duplicates.exact_pairs, "line")
    _show_pairs("near duplicates", report.training.duplicates.near_pairs, "line")
    if report.leakage:
        _show_pairs("leakage", report.leakage.exact_pairs + report.leakage.near_pairs, "validation line")
    for note in report.notes:
        console.print(f"note: {note}")


def show_supervision(supervision: SupervisionReport, kind: str = "") -> None:
    """Print how many tokens are supervised, and rows with a problem; ``kind`` is ``"validation "`` for that file."""
    sample = f" (a sample of the file's {counted(supervision.lines, 'line')})" if supervision.sampled else ""
    console.print(
        f"{kind}tokens: {supervision.tokens:,} in {counted(supervision.rows, 'row')}{sample}, "
        f"{supervision.supervised_tokens:,} of them supervised; "
        f"truncated rows: {supervision.truncated_rows:,} ({supervision.truncation_fraction:.1%} of all tokens)",
    )
    for what, notes in (
        ("cannot be written with the base's chat template", supervision.unsupported),
        ("have tokens that the base's embedding has no row for", supervision.without_embedding),
        ("have no supervised token", supervision.nothing_supervised),
        ("do not teach the base when to stop", supervision.end_not_learnt),
        ("are trained on only in their last answer", supervision.last_turn_only),
        (
            f"have a different prompt in serving than in training{supervision.known_arguments}",
            supervision.prompt_differs,
        ),
        ("have a developer turn that is written as a system turn", supervision.developer_as_system),
        ("lose thoughts of their answers", supervision.thoughts_left_out),
        ("lose the names of their speakers", supervision.names_left_out),
    ):
        if notes.count:
            first = notes.first[0]
            console.print(f"{kind}rows that {what}: {notes.count:,}; the first is line {first.line}: {first.reason}")
    if supervision.end_token_note and not kind:
        console.print(f"note: {supervision.end_token_note}")


@contextmanager
def _progress(total: int) -> Iterator[Progress]:
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        bar.add_task("reading", total=total)
        yield bar


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO | None]:
    if path is None:
        yield None
        return
    try:
        file = path.open("wb")
    except OSError as error:
        fail(f"--quarantine {path} cannot be written: {error.strerror}. Name a file in an existing folder.")
    with file:
        yield file


def _show_errors(name: str, file_report: FileReport) -> None:
    if file_report.advice:  # one sentence instead of a table of equal lines
        first = file_report.errors[0]
        console.print(f"{name} {file_report.advice.finding}.")
        counts = ", ".join(f"{code} {count:,}" for code, count in file_report.errors_by_code.items())
        console.print(f"bad lines: {counts}; the first is line {first.line}: {first.reason}")
        return
    more = f", the first {len(file_report.errors)} of them" if file_report.error_count > len(file_report.errors) else ""
    title = f"{counted(file_report.error_count, 'bad line')} in {name}{more}"
    table = Table("line", "code", "what is wrong", title=title)
    faults: dict[tuple[str, str], list[int]] = {}
    for problem in file_report.errors:
        faults.setdefault((problem.code, problem.reason), []).append(problem.line)
    for (code, reason), lines in faults.items():
        table.add_row(line_ranges(lines), code, reason)
    console.print(table)
    if file_report.error_count > len(file_report.errors):
        counts = ", ".join(f"{code} {count}" for code, count in file_report.errors_by_code.items())
        console.print(f"by code: {counts}; `mens data check {name} --quarantine BAD` writes the bad lines to BAD")


def _figures(file_report: FileReport) -> dict[str, str]:
    lengths, repeats = file_report.lengths, file_report.duplicates
    bounds = [f"≤{bound:,}" for bound in lengths.bounds] + [f">{lengths.bounds[-1]:,}"]
    histogram = [f"{bound}: {count:,}" for bound, count in zip(bounds, lengths.counts, strict=True) if count]
    return {
        "valid rows": f"{file_report.rows:,}",
        "kept by the filter": f"{file_report.trainable_rows:,}",
        "bad lines": f"{file_report.error_count:,}",
        "bytes": f"{file_report.bytes:,}",
        "turns": _counts(file_report.turns),
        "characters a row": f"mean {lengths.mean:,.0f}, longest {lengths.longest:,} (line {lengths.longest_line})",
        "lengths": ", ".join(histogram),
        "ratings": _counts(file_report.ratings),
        "difficulties": _counts(file_report.difficulties),
        "categories": _counts(file_report.categories),
        "lanes": _counts(file_report.lanes),
        "duplicates": f"{repeats.exact_rows:,} exact, {repeats.near_rows:,} near",
        **_pair_figures(file_report.preferences),
        **(
            {"rated good, rated bad": f"{file_report.rated.good:,}, {file_report.rated.bad:,}"}
            if file_report.rated
            else {}
        ),
    }


def _pair_figures(pairs: PreferenceReport | None) -> dict[str, str]:
    if pairs is None:
        return {}
    return {
        "preferred is the longer answer": f"{pairs.longer_chosen:,} of {pairs.pairs:,}",
        "contradict an earlier pair": f"{pairs.contradicting:,}",
    }


def _counts(counts: dict[str, int], shown: int = 6) -> str:
    entries = [f"{name} {count:,}" for name, count in list(counts.items())[:shown]]
    return ", ".join(entries) + (f" and {len(counts) - shown} more" if len(counts) > shown else "")


def _show_pairs(title: str, pairs: list[LinePair], second: str) -> None:
    for pair in pairs[:SHOWN_PAIRS]:
        alike = "the same as" if pair.similarity == 1 else f"about {pair.similarity:.0%} the same as"
        console.print(f"{title}: {second} {pair.second} is {alike} line {pair.first}")


def _verdict(report: DataReport, error: MensError | None) -> str:
    if error is None:
        what = "pair" if report.training.preferences else "row"
        return f"ok: {counted(report.training.trainable_rows, what)} to train on{_held_out(report)}"
    files = [file for file in (report.training, report.validation) if file]
    advice = next((file.advice for file in files if file.advice), None)
    if advice and error.code in (Code.DATASET_LINE_INVALID, Code.DATASET_EMPTY):
        return f"not usable in this form. {error.remedy}"
    if error.code is Code.DATASET_LINE_INVALID and not all(file.rows for file in files):
        return "not usable: no line of the file is a row; correct the lines above"
    if error.code is Code.DATASET_LINE_INVALID:
        return "not usable: correct the lines above, or skip them with --lenient, here as in mens plan and mens train"
    return f"not usable: {error}"


def _held_out(report: DataReport) -> str:
    """Return the verdict's end: how many rows a job holds out, unless its contract says otherwise."""
    ratio = DataSection.model_fields["validation_split_ratio"].default
    rows = 0 if report.validation else validation_split(report.training.trainable_rows, ratio)
    if not rows:
        return ""
    return (
        f"; a job holds {rows:,} of them out for validation, unless it has --validation or "
        "data.validation_split_ratio 0"
    )

"""The steps of ``mens migrate openai`` that need neither OpenAI nor a network."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from cli.client.connection import fail, note
from cli.conversion.outcomes import ConvertedMethod, RowOptions
from cli.options import existing_file
from cli.output import plain_console
from corpus.filters.rules import RedactionRules
from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.folder import Archive
from openai_migration.commands.options import EXPORT, ExportFolder
from openai_migration.conversion.response_formats import FormatCheck, check_formats
from openai_migration.conversion.training_files import (
    REPORT,
    Choices,
    ConvertedFile,
    convert_files,
    find_files,
    output_of,
)
from openai_migration.scan import ADVICE, scan, source_files
from shared.counted_nouns import counted
from shared.datasets.file_parts import reading_processes

app = typer.Typer()


@app.command("convert")
def convert(
    *,
    archive: ExportFolder = EXPORT,
    original: Annotated[
        list[Path],
        typer.Option(
            exists=True,
            help="Local file or folder with originals of files that could not be downloaded; may be repeated.",
            default_factory=list,
            show_default=False,
        ),
    ],
    allow_image_loss: Annotated[
        bool,
        typer.Option(
            "--allow-image-loss", help="Write files even if they lose more than 5 % of their rows because of images."
        ),
    ] = False,
    strip: Annotated[
        bool,
        typer.Option("--strip", help="Remove the separators and stop tokens found in prompts and completions."),
    ] = False,
    keep_refusals: Annotated[
        bool, typer.Option("--keep-refusals", help="Keep a refusal as the answer. Default: drop its row.")
    ] = False,
    developer_as_system: Annotated[
        bool,
        typer.Option(
            "--developer-as-system",
            help="Write developer turns as system turns, for bases whose chat template has no role `developer`.",
        ),
    ] = False,
    as_supervised: Annotated[
        bool,
        typer.Option("--as-supervised", help="Convert a preference pair (DPO) to a row with the preferred answer."),
    ] = False,
    split_answers: Annotated[
        bool,
        typer.Option(
            "--split-answers",
            help="Write a chat with several answers as one row per answer, for templates that rewrite history.",
        ),
    ] = False,
    redact: Annotated[
        Path | None,
        existing_file("File of rules that remove personal data, one per line: EXPRESSION => REPLACEMENT."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which files would be converted; write nothing.")
    ] = False,
) -> None:
    """Convert training and validation files to Mens' rows, and report for every line whether it was kept, changed or
    dropped, and why.

    Needs no network. Writes data/PROJECT/FILE.jsonl, for each a .report.jsonl with one entry per input line, and convert-report.json.
    Exit code 1 if a file would lose more than 5 % of its rows because of images: it is not written without --allow-image-loss.
    """
    import shared.datasets.fingerprints  # noqa: F401 - numpy is slow to import; once, before processes are forked

    contents = ArchiveContents(archive)
    files = find_files(contents, original)
    if dry_run:
        for file in files:
            fate = f"to {output_of(file)}" if file.path else "missing; give its original: --original PATH"
            typer.echo(f"{file.project} {file.name} ({file.file_id}): {fate}")
        return
    rows = RowOptions(keep_refusals, developer_as_system, as_supervised, split_answers)
    choices = Choices(rows, strip, allow_image_loss, RedactionRules(redact) if redact else None)
    formats = check_formats(contents)
    console = plain_console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    try:
        with (
            # The processes first: they are forked, and a progress bar is a thread.
            reading_processes(sum(file.path.stat().st_size for file in files if file.path)) as executor,
            Archive(archive) as target,
            Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
        ):
            tasks = {file.name: bar.add_task(file.name, total=file.size) for file in files if file.path}
            done = convert_files(
                target,
                files,
                choices,
                lambda name, read: bar.update(tasks[name], completed=read),
                executor,
                formats,
            )
    except BrokenProcessPool:
        fail(
            "A process that converted a file was killed, perhaps because memory ran out. Try again; all files are "
            "converted again."
        )
    for converted in done:
        _show(archive, converted)
    _show_formats(formats)
    note(f"each file's .report.jsonl lists every line; the totals are in {archive / REPORT}")
    if refused := [converted.name for converted in done if converted.report and converted.report.refused]:
        fail(
            f"not written, because too many rows have images: {', '.join(refused)}. Use --allow-image-loss to leave "
            "these rows out."
        )
    note(f"next: `mens migrate openai plan {archive}`")


@app.command("scan")
def scan_code(
    path: Annotated[Path, typer.Argument(exists=True, help="Folder of a program's source, or one file.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON, one per line.")] = False,
) -> None:
    """List places in a program that will fail, or work differently, with your installation's base URL.

    Searches the source text for model names, moderation, batches, assistants, stored responses, images, functions and more; check
    each finding yourself. Sends and changes nothing; hidden folders and installed packages are skipped.
    """
    findings = list(scan(source_files(path)))
    if as_json:
        for finding in findings:
            place = {"path": str(finding.path), "line": finding.line, "kind": finding.kind, "text": finding.text}
            typer.echo(json.dumps({**place, "advice": ADVICE[finding.kind]}))
        return
    for kind, advice in ADVICE.items():
        if places := [finding for finding in findings if finding.kind is kind]:
            typer.echo(f"{kind} ({len(places)}): {advice}")
            for finding in places:
                typer.echo(f"  {finding.path}:{finding.line}: {finding.text}")
    files = len({finding.path for finding in findings})
    note(f"{counted(len(findings), 'finding')} in {counted(files, 'file')}")


def _show(archive: Path, converted: ConvertedFile) -> None:
    report, name = converted.report, f"{converted.project} {converted.name}"
    if report is None:
        typer.echo(f"{name}: missing; give its original ({converted.size} bytes): --original PATH")
        return
    typer.echo(
        f"{name}: {counted(report.lines, 'line')}: {report.kept} kept, {report.changed} changed, {report.dropped} "
        "dropped"
    )
    for title, counts in (("changed", report.changes), ("dropped", report.drops), ("note", report.notes)):
        for rule, count in Counter(counts).most_common():
            lines = ", ".join(map(str, report.examples[rule]))
            typer.echo(
                f"  {title}: {rule}: {count} (line {lines}{', …' if count > len(report.examples[rule]) else ''})"
            )
    for schema, why in report.schemas.items():
        typer.echo(f"  schema_refused: {schema}: {why}")
    if report.separator or report.stop:
        what = "were removed" if report.stripped else "were kept; to remove them: --strip"
        typer.echo(f"  prompts end with {report.separator!r}, completions with {report.stop!r}; they {what}")
    if report.method is not ConvertedMethod.SUPERVISED and report.output:
        use = (
            "method.type dpo trains on them"
            if report.method is ConvertedMethod.DPO
            else "this release cannot train on them"
        )
        typer.echo(f"  rows for {report.method} are kept unchanged; {use}")
    typer.echo(f"  {report.refused or f'written to {archive / report.output}'}")


def _show_formats(formats: list[FormatCheck]) -> None:
    """Print the schemas of requests that the gate, or a program, will send."""
    if formats:
        typer.echo(f"{counted(len(formats), 'schema')} in recorded prompts, stored chats and batches")
    for check in formats:
        if check.refused:
            where = ", ".join(f"{count} {source}" for source, count in check.requests.items())
            typer.echo(f"  an installation would refuse {check.name} ({where}): {check.refused}")

"""``mens migrate openai import``: an archive from a team's own files. Needs neither OpenAI nor a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.client.connection import note
from cli.migration.archive.folder import SECRECY, Archive
from cli.migration.local_files.importing import LocalFiles, read_files, write_files
from cli.options import existing_file
from cli.output import counted

app = typer.Typer()


@app.command("import")
def import_archive(
    *,
    archive: Annotated[Path, typer.Argument(file_okay=False, help="Folder of the archive; it is made.")] = Path(
        "openai-archive"
    ),
    model: Annotated[str, typer.Option(help="The tuned model's name at OpenAI: ft:BASE:ORG:SUFFIX:ID.")],
    training: Annotated[Path, existing_file("JSONL file that it was trained on.")],
    validation: Annotated[Path | None, existing_file("Its validation file, JSONL.")] = None,
    answers: Annotated[
        Path | None,
        existing_file(
            "JSONL file of what it answered, a line each: the request's messages, and choices (or answer as text)."
        ),
    ] = None,
    graders: Annotated[
        Path | None,
        existing_file("Graders as OpenAI's JSON: one, a list, an eval, or a line each."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of its job, as the dashboard shows them.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read the files, and write nothing.")] = False,
) -> None:
    """Make an archive of files that you have: rows, recorded answers, graders. In the place of `export` and `record`.

    For teams without API access. `convert`, `plan`, `train`, `gate`, `switch` and `report` take the archive. Without --answers a
    successor can be trained, but compared with nothing. Run it once for each tuned model; running it again replaces what it has
    written for that model. A line that is no answer ends it, with its number, before anything is written.
    """
    files = LocalFiles(model, training, validation, answers, graders, epochs)
    # Before the archive is created, so that a refusal leaves none behind.
    read = read_files(files)
    done = read.done
    if not dry_run:
        with Archive(archive) as target:
            write_files(target, read)
            target.finish()
    had = f"{counted(done.prompts, 'prompt')} with {counted(done.answers, 'answer')}, {counted(done.graders, 'grader')}"
    typer.echo(f"{model}: {f'would write its rows, {had} into {archive}' if dry_run else had}")
    for reason, count in done.left_out.items():
        typer.echo(
            f"  left out: {counted(count, 'answer')} to prompts that were {reason}: there the old model is favoured"
        )
    if done.again:
        typer.echo(f"  left out: {counted(done.again, 'line')} of a completion that another line has, by its id")
    if done.alike:
        typer.echo(
            f"  without an id, and the same as another line: {counted(done.alike, 'line')}, counted as repeated answers: "
            "take out what is a copy"
        )
    if dry_run:
        return
    if not done.prompts:
        typer.echo("  without recorded answers a successor can be compared with nothing: --answers FILE")
    if done.graders and not done.scored:
        typer.echo("  no answer has `scores`, so graders are shown and do not block")
    typer.echo(f"{archive}: {SECRECY}")
    note(f"next: `mens migrate openai convert {archive}`")

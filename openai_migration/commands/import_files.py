"""``mens migrate openai import``: creates an archive from a team's own files. It needs neither OpenAI nor a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.client.connection import note
from cli.options import existing_file
from openai_migration.archive.folder import SECRECY, Archive
from openai_migration.local_files.importing import LocalFiles, read_files, write_files
from shared.counted_nouns import counted

app = typer.Typer()


@app.command("import")
def import_archive(
    *,
    archive: Annotated[
        Path, typer.Argument(file_okay=False, help="Folder of the archive; created if it does not exist.")
    ] = Path("openai-archive"),
    model: Annotated[str, typer.Option(help="The tuned model's name at OpenAI: ft:BASE:ORG:SUFFIX:ID.")],
    training: Annotated[Path, existing_file("JSONL file that the model was trained on.")],
    validation: Annotated[Path | None, existing_file("The model's validation file, JSONL.")] = None,
    answers: Annotated[
        Path | None,
        existing_file(
            "JSONL file of the model's answers, one per line: the request's messages, and choices (or answer, a "
            "string)."
        ),
    ] = None,
    graders: Annotated[
        Path | None,
        existing_file("Graders as OpenAI's JSON: one, a list, an eval, or one per line."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of the model's job, as the dashboard shows them.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read the files; write nothing.")] = False,
) -> None:
    """Make an archive from files that you have: rows, recorded answers, graders. Replaces `export` and `record`.

    For teams without API access. `convert`, `plan`, `train`, `gate`, `switch` and `report` take the archive. Without
    --answers a successor can be trained, but not compared. Run it once for each tuned model; running it again replaces
    the model's files. If a line is not an answer, its number is reported and nothing is written.
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
            f"  left out: {counted(count, 'answer')} to prompts that were {reason}, which would favour the old model"
        )
    if done.again:
        typer.echo(f"  left out: {counted(done.again, 'line')} with the id of another line's completion")
    if done.alike:
        typer.echo(
            f"  {counted(done.alike, 'line')} without an id, equal to another line, counted as repeated answers: "
            "remove copies"
        )
    if dry_run:
        return
    if not done.prompts:
        typer.echo("  a successor can only be compared with recorded answers: --answers FILE")
    if done.graders and not done.scored:
        typer.echo("  no answer has `scores`, so graders are shown but do not block")
    typer.echo(f"{archive}: {SECRECY}")
    note(f"next: `mens migrate openai convert {archive}`")

"""``mens migrate openai report``: one HTML file that shows what was kept, lost and proven. It needs no network."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.client.connection import note
from cli.client.json_errors import note_json
from openai_migration.archive.folder import SECRECY, write_private
from openai_migration.report.facts import collect
from openai_migration.report.page import render_page, shown_steps
from shared.counted_nouns import counted

app = typer.Typer()
NAME = "report.html"


@app.command("report")
def report(
    archive: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Folder of an archive, at any step.")
    ] = Path("openai-archive"),
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help=f"File to write. Default: {NAME} in the archive.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, max=200, help="Prompts per model to show with their answers; 0: none.")
    ] = 8,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is known; write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the facts as JSON.")] = False,
) -> None:
    """Write the report for sign-off: models with their days left; what was kept, lost and proven; answers side by side.

    It is one self-contained HTML file. You can write it after any step; it lists missing steps. It contains prompts and
    answers unchanged, unless --samples is 0.
    """
    facts = collect(archive, datetime.now(UTC).date(), samples)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(facts)).decode())
    else:
        steps = shown_steps(facts)
        done = [step for step in steps if facts.steps[step]]
        left = [step for step in steps if not facts.steps[step]]
        typer.echo(
            f"{counted(len(facts.models), 'tuned model')}; done: {', '.join(done) or 'nothing'}; not yet: {', '.join(left) or 'nothing'}"
        )
    if dry_run:
        return
    path = output or archive / NAME
    write_private(path, render_page(facts).encode())
    note(f"written to {path}. {SECRECY if samples else ''}".rstrip())

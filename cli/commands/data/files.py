"""``mens files``: uploaded files, which count toward a tenant's quota: list, show, rows, delete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from textwrap import indent
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.client.completion import complete_base, complete_file
from cli.client.connection import call, note
from cli.client.id_prefixes import FILES
from cli.client.json_errors import Json
from cli.output import LEFT_OUT, format_minute, format_size, print_table, printable, shorten_ids
from shared.counted_nouns import counted

app = typer.Typer(no_args_is_help=True, help="Uploaded files: list, show, rows, delete.")
FileId = Annotated[
    str,
    typer.Argument(autocompletion=complete_file, help="Id of the file, or its beginning or end if that is unique."),
]


@app.command("list")
def list_files(
    purpose: Annotated[str | None, typer.Option(help="Only files with this purpose, e.g. fine-tune or evals.")] = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Show the page after this file.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Files per page.")] = 20,
    as_json: Json = False,
) -> None:
    """Show uploaded files, newest first."""
    which = {"purpose": purpose, "after": after and FILES.resolve(after)}
    query = {"limit": limit, "order": "desc"} | {name: value for name, value in which.items() if value}
    page = call("GET", "/v1/files", params=query)
    files = page["data"]
    if as_json:
        typer.echo(json.dumps(files, indent=2))
        return
    print_table(
        ("id", "name", "purpose", "size", "uploaded (UTC)", "expires (UTC)"),
        [
            (
                file["id"],
                file["filename"],
                file["purpose"],
                format_size(file["bytes"]),
                format_minute(file["created_at"]),
                format_minute(file.get("expires_at")),
            )
            for file in files
        ],
    )
    if page["has_more"]:
        note(f"for older ones, repeat the command with --after {shorten_ids(files[-1]['id'])}")
    else:
        note(f"{counted(len(files), 'file')}, {format_size(sum(file['bytes'] for file in files))}")


@app.command("show")
def show(file: FileId, as_json: Json = False) -> None:
    """Show a file's name, purpose, size and times."""
    record = call("GET", _path(FILES.resolve(file)))
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    for line in _describe(record):
        typer.echo(line)


@app.command("rows")
def rows(
    file: FileId,
    model: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_base,
            help="Base whose template and tokens are shown. Default: none, show the lines unchanged.",
        ),
    ] = None,
    seq_len: Annotated[int | None, typer.Option(min=8, help="Length in tokens at which rows are truncated.")] = None,
    only: Annotated[
        str, typer.Option(help="all, errors (lines that are not rows), cut (rows that are too long), or notes.")
    ] = "all",
    after: Annotated[int, typer.Option(min=0, metavar="LINE", help="Begin after this line.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Rows per page.")] = 20,
    as_json: Json = False,
) -> None:
    """Show a file's lines and their faults; with --model, rows as they are trained on, supervised text in [[ ]], truncated in ~~ ~~."""
    parameters = {"base_model": model, "seq_len": seq_len, "only": only, "after": after, "limit": limit}
    query = {name: value for name, value in parameters.items() if value is not None}
    page = call("GET", f"{_path(FILES.resolve(file))}/rows", params=query)
    if as_json:
        typer.echo(json.dumps(page, indent=2))
        return
    for row in page["data"]:
        for line in _describe_row(row):
            typer.echo(printable(line))
    if page["has_more"]:
        note(f"for more, repeat the command with --after {page['next_after']}")


@app.command("delete")
def delete(
    file: FileId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a file; refused while an unfinished job needs it."""
    path = _path(FILES.resolve(file))
    record = call("GET", path)
    if not yes:
        typer.confirm(f"Delete {record['id']} ({record['filename']})? This cannot be undone", abort=True)
    call("DELETE", path)
    typer.echo(f"{record['id']} is deleted")


def _describe(file: dict[str, Any]) -> list[str]:
    expires = f", expires {format_minute(file['expires_at'])}" if file.get("expires_at") else ""
    return [
        f"{file['id']}  {file['filename']}",
        f"purpose  {file['purpose']}",
        f"size     {format_size(file['bytes'])}",
        f"uploaded {format_minute(file['created_at'])} UTC{expires}",
    ]


def _describe_row(row: dict[str, Any]) -> Iterator[str]:
    texts = [(name, row[key]) for name, key in (("", "trained"), ("rejected, ", "rejected")) if row[key]]
    counts = [f"{name}{shown['tokens']} tokens, {shown['supervised_tokens']} supervised" for name, shown in texts]
    yield f"line {row['line']}: {'; '.join(counts) or format_size(row['bytes'])}"
    if error := row["error"]:
        yield f"  {error['code']}: {error['reason']}"
    for noted in row["notes"]:
        yield f"  {noted['name']}: {noted['reason']}"
    for _, shown in texts:
        yield indent("".join(_marked(piece) for piece in shown["pieces"]), "  ")
    if not texts:
        yield f"  {row['text']}{LEFT_OUT if row['text_is_cut'] else ''}"


def _marked(piece: dict[str, Any]) -> str:
    """Return a piece's text with supervised text in [[ ]], and text that is cut off in ~~ ~~."""
    left, right = {"supervised": ("[[", "]]"), "end": ("[[", "]]"), "cut": ("~~", "~~")}.get(piece["kind"], ("", ""))
    return f"{left}{piece['text']}{right}"


def _path(file_id: str) -> str:
    return f"/v1/files/{quote(file_id, safe='')}"

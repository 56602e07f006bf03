"""``mens usage``: what was used of which model, by which key, on which day."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from cli.connection import call
from cli.tables import print_table

PAGE = 1000
COLUMNS = {"day": ("day",), "key": ("key_name", "key_id"), "model": ("model",)}
"""What tells the lines of each group apart; the names of keys do not."""
FIGURES = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


def usage(
    first: Annotated[
        str | None, typer.Option("--from", metavar="YYYY-MM-DD", help="First day, UTC; 29 days before the last.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="YYYY-MM-DD", help="Last day, UTC; today.")] = None,
    by: Annotated[
        str, typer.Option(help="What is told apart: some of day, key, model, comma-separated.")
    ] = "day,key,model",
    key: Annotated[str | None, typer.Option(help="Only the key with this id.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this adapter's id or base's name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Requests and tokens by day, key and model; the tenant's with an admin's key, else the key's own."""
    query = {"from": first, "to": last, "group_by": by, "key_id": key, "model": model}
    lines = list(_lines({name: value for name, value in query.items() if value is not None}))
    if as_json:
        typer.echo(json.dumps(lines, indent=2))
        return
    groups = [part.strip() for part in by.split(",")]
    columns = [name for group in COLUMNS if group in groups for name in COLUMNS[group]] + list(FIGURES)
    print_table([name.replace("_", " ") for name in columns], [[str(line[name]) for name in columns] for line in lines])


def _lines(query: dict[str, str]) -> Iterator[dict[str, Any]]:
    """All pages."""
    more, after = True, dict[str, str]()
    while more:
        page = call("GET", "/v1/usage", params={**query, **after, "limit": PAGE})
        yield from page["data"]
        more = page["has_more"]
        after = {"after": page["data"][-1]["id"]} if more else {}

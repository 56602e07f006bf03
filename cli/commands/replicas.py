"""``mens replicas``: the serving replicas as the API sees them."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from cli.client.connection import find_all, note
from cli.client.json_errors import note_json
from cli.output import print_table


def replicas(as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print JSON.")] = False) -> None:
    """Show the serving replicas: base model, state, requests in flight, and last error with its age. For an admin of `shared`.

    It is the view of one API process (docs/serving.md explains the states).
    """
    listed = find_all("/v1/replicas")
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
    else:
        rows = []
        for replica in listed:
            # On one line, even if the replica's error has several.
            error = " ".join((replica["last_error"] or "").split())
            if error and (at := replica.get("last_error_at")):
                error += f", {ago(time.time() - at)}"
            columns = (replica["name"], replica["url"], replica["base"] or "", replica["state"])
            rows.append((*columns, str(replica["in_flight"]), error))
        print_table(("name", "replica", "base", "state", "in flight", "last error"), rows)
    if not listed:
        note("The API has no replicas: set MENS_SERVING_URLS or MENS_SERVING_DNS.")


def ago(seconds: float) -> str:
    """Format a time span in the largest unit that fits, e.g. "3 min ago"; clocks may differ, so never below 0 s."""
    whole = max(int(seconds), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= length:
            return f"{whole // length} {unit} ago"
    return f"{whole} s ago"

"""``mens replicas``: the serving replicas as the front door sees them."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from cli.connection import find_all, note
from cli.tables import print_table


def replicas(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the serving replicas: state, requests under way, what was last wrong with each, and when. For an admin of `shared`.

    It is what one API process sees (docs/serving.md says what the states mean).
    """
    found = find_all("/v1/replicas")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        print_table(("name", "replica", "state", "in flight", "last error"), map(_row, found))
    if not found:
        note("No replicas: MENS_SERVING_URLS and MENS_SERVING_DNS of the API name none.")


def _row(replica: dict[str, Any]) -> tuple[str, ...]:
    error = " ".join((replica["last_error"] or "").split())  # one line, whatever the replica said
    if error and (at := replica.get("last_error_at")):
        error += f", {ago(time.time() - at)}"
    return replica["name"], replica["url"], replica["state"], str(replica["in_flight"]), error


def ago(seconds: float) -> str:
    """How long ago something was, in the largest unit that fits; clocks may differ, so never less than 0 s."""
    whole = max(int(seconds), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= length:
            return f"{whole // length} {unit} ago"
    return f"{whole} s ago"

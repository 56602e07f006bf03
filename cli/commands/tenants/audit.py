"""``mens audit``: lists the recorded changes with their actors, exports them as JSON lines, and prunes exported ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.client.connection import call, fail, note
from cli.client.json_errors import Json
from cli.commands.aliases import describe_state
from cli.commands.keys.commands import check_tenant
from cli.output import print_table
from cli.times import past_time
from shared.counted_nouns import counted

PATH = "/v1/audit"
PAGE = 1000
WIDTH = 80
"""Width of the changes in a table; `--json` has all of them."""
app = typer.Typer(
    no_args_is_help=True,
    help="The audit log: who created, changed and deleted keys, limits, jobs, files, models, aliases, policies and webhooks.\n\n"
    "An admin's key reads its tenant's events, an operator's key those of every tenant.",
)
Tenant = Annotated[
    str | None, typer.Option(envvar="MENS_TENANT", callback=check_tenant, help="Only events of this tenant.")
]
Action = Annotated[str | None, typer.Option(help="Only this event: `key.rotated`, or `key` for all events of keys.")]
Actor = Annotated[str | None, typer.Option(help="Only events caused by this key (id or name) or job (id).")]
Object = Annotated[str | None, typer.Option("--object", help="Only events of this object: an id or a name.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", callback=past_time, help="From this time on: 2h, 7d, 2027-01-31, 2027-01-31T18:00Z."),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", callback=past_time, help="Before this time.")]


@app.command("list")
def list_events(
    action: Action = None,
    actor: Actor = None,
    object_id: Object = None,
    since: Since = None,
    until: Until = None,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option(min=1, max=PAGE, help="Number of events to show.")] = 50,
    as_json: Json = False,
) -> None:
    """Show events, newest first."""
    which = {"action": action, "actor": actor, "object_id": object_id, "since": since, "until": until}
    events = _page(tenant, which, limit=limit)["data"]
    if as_json:
        typer.echo(json.dumps(events, indent=2))
        return
    rows = [
        (
            str(event["seq"]),
            event["created_at"][:19].replace("T", " "),
            event["tenant"],
            event["actor"],
            event["action"],
            event["object_id"],
            _describe(event["changes"]),
        )
        for event in events
    ]
    print_table(("seq", "when (UTC)", "tenant", "who", "action", "what", "changes"), rows)


@app.command("export")
def export(
    after: Annotated[
        int, typer.Option(min=0, help="Continue after this event, the last one of an earlier export.")
    ] = 0,
    tenant: Tenant = None,
) -> None:
    """Write events as JSON lines to stdout, oldest first. The last event's number, to continue from, goes to stderr.

    Keep a copy of the log with `mens audit export --after "$(tail -1 audit.jsonl | jq .seq)" >> audit.jsonl`.
    """
    count = last = 0
    for event in _all(tenant, after):
        sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
        count, last = count + 1, event["seq"]
    note(f"{counted(count, 'event')}; continue with --after {last or after}")


@app.command("prune")
def prune(
    exported: Annotated[
        Path, typer.Argument(metavar="FILE", help="Export of the whole log of all tenants.", exists=True)
    ],
    through: Annotated[
        int | None, typer.Option(help="Delete only up to this event. Default: all events of the file.")
    ] = None,
) -> None:
    """Delete exported events; for operators. The deletion is itself an event of the log.

    Refused unless the file has exactly the log's events up to that event.
    """
    numbers = _numbers(exported, through)
    if not numbers:
        fail(f"{exported} has no event to prune.")
    pruned = call("POST", f"{PATH}/prune", tenant="", json={"through": max(numbers), "events": len(numbers)})
    typer.echo(f"deleted: {counted(pruned['events'], 'event')} up to {pruned['through']}")


def _all(tenant: str | None, after: int) -> Iterator[dict[str, Any]]:
    has_more = True
    while has_more:
        page = _page(tenant, {"after": after}, limit=PAGE, order="asc")
        yield from page["data"]
        has_more = page["has_more"]
        after = page["data"][-1]["seq"] if page["data"] else after


def _page(tenant: str | None, which: dict[str, Any], **paging: Any) -> Any:
    # Without the header, an operator gets the events of all tenants.
    filters = {name: value for name, value in {**which, "tenant": tenant}.items() if value is not None}
    return call("GET", PATH, tenant="", params=filters | paging)


def _numbers(path: Path, through: int | None) -> set[int]:
    """Return the numbers of the events of an export, up to ``through`` if given."""
    try:
        numbers = {int(json.loads(line)["seq"]) for line in path.read_text().splitlines() if line}
    except (ValueError, KeyError, TypeError):
        fail(f"{path} is not an export of the audit log: a line has no `seq`.")
    return {number for number in numbers if through is None or number <= through}


def _describe(changes: dict[str, Any]) -> str:
    """Describe changes in one line, e.g. ``role viewer → admin``."""
    line = ", ".join(f"{name} {_step(change['before'], change['after'])}" for name, change in changes.items())
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _step(before: Any, after: Any) -> str:
    return _value(after) if before is None else f"{_value(before)} → {_value(after)}"


def _value(value: Any) -> str:
    if isinstance(value, dict) and ("targets" in value or "kind" in value):
        return describe_state(value)
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)

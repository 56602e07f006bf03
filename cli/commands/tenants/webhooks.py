"""``mens webhooks``: a tenant's webhook endpoints, and their deliveries."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.client.connection import call, fail, find_all, note
from cli.client.id_prefixes import WEBHOOKS
from cli.client.json_errors import Json
from cli.output import print_table
from shared.webhooks.events import EventType

app = typer.Typer(
    no_args_is_help=True,
    help="Webhooks: get notified of checkpoints and of the end of a job or an eval run, instead of polling. They need an admin's key.\n\n"
    "Run `mens webhooks create URL`, store the secret that it prints, then run `mens webhooks test ID`.",
)
PATH = "/v1/webhook_endpoints"
ALL_EVENTS = tuple(map(str, EventType))
Endpoint = Annotated[str, typer.Argument(metavar="ID", help="Id of the endpoint, or any unique part of it.")]
Event = Annotated[
    list[str] | None, typer.Option("--event", help=f"Type of event; may be repeated: {', '.join(ALL_EVENTS)}.")
]


@app.command("list")
def list_endpoints(as_json: Json = False) -> None:
    """Show the tenant's endpoints, newest first."""
    endpoints = find_all(PATH, limit=100)
    if as_json:
        typer.echo(json.dumps(endpoints, indent=2))
        return
    rows = [
        (endpoint["id"], endpoint["name"], endpoint["url"], _events(endpoint), _state(endpoint))
        for endpoint in endpoints
    ]
    print_table(("id", "name", "URL", "events", "state"), rows)


@app.command("create")
def create(
    url: Annotated[str, typer.Argument(help="https:// URL of the receiver, on a public host.")],
    name: Annotated[str, typer.Option(help="Name of the endpoint.")] = "webhook",
    event: Event = None,
    as_json: Json = False,
) -> None:
    """Add an endpoint and print its secret, which is shown only once. Without --event it gets all events."""
    body = {"url": url, "name": name, "event_types": event or list(ALL_EVENTS)}
    _print_secret(call("POST", PATH, json=body), as_json)


@app.command("update")
def update(
    endpoint: Endpoint,
    url: Annotated[str | None, typer.Option(help="New URL.")] = None,
    name: Annotated[str | None, typer.Option(help="New name.")] = None,
    event: Event = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Enable or disable deliveries.")] = None,
) -> None:
    """Change an endpoint. --enable enables one that was disabled because deliveries failed."""
    changes = {"url": url, "name": name, "event_types": event, "enabled": enabled}
    requested = {key: value for key, value in changes.items() if value is not None}
    if not requested:
        raise typer.BadParameter("Give --url, --name, --event, --enable or --disable.")
    changed = call("POST", _path(endpoint), json=requested)
    typer.echo(f"{changed['id']} {changed['url']} {_events(changed)}: {_state(changed)}")


@app.command("delete")
def delete(endpoint: Endpoint) -> None:
    """Delete an endpoint and its pending deliveries."""
    endpoint = WEBHOOKS.resolve(endpoint)
    call("DELETE", _path(endpoint))
    typer.echo(f"{endpoint} is deleted")


@app.command("rotate")
def rotate(
    endpoint: Endpoint,
    now: Annotated[
        bool, typer.Option("--now", help="Invalidate the old secret at once, e.g. if it has leaked.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Give an endpoint a new secret. For 24 hours webhooks are signed with both, so you can switch the receiver meanwhile."""
    body = {"keep_old_secret_active_for_24_hours": not now}
    _print_secret(call("POST", f"{_path(endpoint)}/rotate_secret", json=body), as_json)


@app.command("test")
def test(
    endpoint: Endpoint,
    event: Annotated[str, typer.Option(help="Type of the sample event.")] = ALL_EVENTS[0],
    as_json: Json = False,
) -> None:
    """Send a sample event once and show the outcome; exit code 1 if it was not delivered."""
    outcome = call("POST", f"{_path(endpoint)}/test", json={"event_type": event})
    delivery = outcome["mens"]
    if as_json:
        typer.echo(json.dumps(outcome, indent=2))
    elif delivery["status"] == "delivered":
        typer.echo(f"delivered: HTTP {outcome['status_code']}, event {delivery['event_id']}")
    elif delivery["status"] == "pending":
        fail(
            "not attempted yet. Check that the control worker is running; `mens webhooks deliveries` shows the outcome."
        )
    else:
        fail(f"not delivered: {delivery['last_error']}")
    if delivery["status"] != "delivered":
        raise typer.Exit(1)


@app.command("deliveries")
def deliveries(
    endpoint: Endpoint,
    status: Annotated[str | None, typer.Option(help="pending, delivered or failed. Default: all.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of deliveries to show.")] = 20,
    as_json: Json = False,
) -> None:
    """Show an endpoint's deliveries, also pending ones, newest first."""
    attempts = find_all(f"{_path(endpoint)}/deliveries", limit=limit, **({"status": status} if status else {}))
    if as_json:
        typer.echo(json.dumps(attempts, indent=2))
        return
    rows = [
        (
            delivery["event_id"],
            delivery["type"] + (" (test)" if delivery["is_test"] else ""),
            delivery["created_at"][:19],
            delivery["status"],
            str(delivery["attempts"]),
            delivery["next_attempt_at"][:19] if delivery["next_attempt_at"] else "",
            delivery["last_error"] or (f"HTTP {delivery['status_code']}" if delivery["status_code"] else ""),
        )
        for delivery in attempts
    ]
    print_table(("event", "type", "when (UTC)", "status", "attempts", "next (UTC)", "last answer"), rows)


def _print_secret(endpoint: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(endpoint, indent=2))
        return
    typer.echo(f"id      {endpoint['id']}")
    typer.echo(f"secret  {endpoint['signing_secret']}")
    until = endpoint["mens"]["old_secret_until"]
    overlap = f" The old secret also signs until {until[:19]} UTC." if until else ""
    note(f"The secret is shown only once; the receiver verifies signatures with it.{overlap}")


def _events(endpoint: dict[str, Any]) -> str:
    return "all" if set(endpoint["event_types"]) == set(ALL_EVENTS) else ", ".join(endpoint["event_types"])


def _state(endpoint: dict[str, Any]) -> str:
    state = endpoint["mens"]
    if state["enabled"]:
        return "enabled"
    since = datetime.fromisoformat(state["disabled_at"]).astimezone(UTC)
    return f"DISABLED since {since:%Y-%m-%d %H:%M} UTC: {state['disabled_reason']}"


def _path(endpoint: str) -> str:
    return f"{PATH}/{quote(WEBHOOKS.resolve(endpoint), safe='')}"

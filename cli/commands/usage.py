"""``mens usage``: what was used of which model, by which key, on which day."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.connection import call, find, find_all, note
from cli.key_stores import RemoteKeys, find_id
from cli.keys import check_tenant
from cli.names import whole_adapter_id
from cli.tables import print_table

PAGE = 1000
COLUMNS = {"day": ("day",), "key": ("key_name", "key_id"), "model": ("model",)}
"""What tells the lines of each group apart; the names of keys do not."""
FIGURES = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
KEY_ID = r"key-[0-9a-z]{26}"
FIRST_DAY = "0001-01-01"
NOTHING = dict.fromkeys(FIGURES, 0)


def usage(
    first: Annotated[
        str | None, typer.Option("--from", metavar="YYYY-MM-DD", help="First day, UTC; 29 days before the last.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="YYYY-MM-DD", help="Last day, UTC; today.")] = None,
    by: Annotated[
        str, typer.Option(help="What is told apart: some of day, key, model, comma-separated.")
    ] = "day,key,model",
    key: Annotated[str | None, typer.Option(help="Only this key's, by id or name; a revoked one's, too.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Only of this base or adapter (its id or the beginning), or of those that this alias points to now."
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            envvar="MENS_TENANT",
            callback=check_tenant,
            help="Only this tenant's; left out: that of MENS_API_KEY.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Requests and tokens by day, key and model; the tenant's with an admin's key, else the key's own."""
    key_id = key and _key_id(key, tenant)
    given = {"from": first, "to": last, "group_by": by, "key_id": key_id}
    query = {name: value for name, value in given.items() if value is not None}
    models = _aliased(model, tenant) if model else []
    queries = [{**query, "model": name} for name in models] or [query]
    lines = _added(line for each in queries for line in _lines(each, tenant))
    if not lines:
        for name in models:
            _check_model(name, tenant)
        note(_describe_nothing(query, models))
    if as_json:
        typer.echo(json.dumps(lines, indent=2))
        return
    groups = [part.strip() for part in by.split(",")]
    columns = [name for group in COLUMNS if group in groups for name in COLUMNS[group]] + list(FIGURES)
    print_table([name.replace("_", " ") for name in columns], [[str(line[name]) for name in columns] for line in lines])


def _key_id(given: str, tenant: str | None) -> str:
    """Id of a key that is named by it, which takes no admin for the own one, or by its name."""
    return given if re.fullmatch(KEY_ID, given) else find_id(RemoteKeys(tenant), given, revoked=True)


def _aliased(model: str, tenant: str | None) -> list[str]:
    """What usage is kept by: for an alias the adapters that answer for it, else the base or the whole adapter id."""
    for alias in find_all("/v1/aliases", tenant):
        if alias["name"] == model:
            adapters = [target["adapter"] for target in alias["targets"]]
            note(
                f"note: usage is kept by adapter: this is that of {', '.join(adapters)} under any name, "
                f"not of what {model} pointed to before"
            )
            return adapters
    return [whole_adapter_id(model, tenant=tenant)]


def _check_model(name: str, tenant: str | None) -> None:
    """End the command with ``MODEL_NOT_FOUND`` for what is no model, and was none: nothing else is a typing error."""
    path = quote(name, safe="")
    is_adapter = find(f"/v1/adapters/{path}", tenant)  # or was one
    if not is_adapter and not any(_lines({"from": FIRST_DAY, "group_by": "", "model": name}, tenant)):
        call("GET", f"/v1/models/{path}", tenant)


def _added(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of several models in the API's order; those that the groups do not tell apart are one."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        known = found.setdefault(tuple(line[name] or "" for name in ("day", "key_id", "model")), {**line, **NOTHING})
        known |= {name: known[name] + line[name] for name in FIGURES}
    return [found[group] for group in sorted(found)]


def _describe_nothing(query: dict[str, str], models: list[str]) -> str:
    of = f" of {', '.join(models)}" if models else ""
    by = f" by {query['key_id']}" if "key_id" in query else ""
    since = f" from {query['from']}" if "from" in query else ""
    until = f" to {query['to']}" if "to" in query else ""
    return f"No usage{of}{by}{since}{until}{'' if since or until else ' in the last 30 days'}."


def _lines(query: dict[str, str], tenant: str | None) -> Iterator[dict[str, Any]]:
    """All pages."""
    more, after = True, dict[str, str]()
    while more:
        page = call("GET", "/v1/usage", tenant, params={**query, **after, "limit": PAGE})
        yield from page["data"]
        more = page["has_more"]
        after = {"after": page["data"][-1]["id"]} if more else {}

"""``mens usage``: requests and tokens by day, key and model; GPU time next to them, and what it costs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.client.connection import call, find, find_all, note
from cli.client.id_prefixes import resolve_adapter_id
from cli.client.json_errors import note_json
from cli.commands.keys.commands import check_tenant
from cli.commands.keys.store import RemoteKeys, find_id
from cli.output import print_table

PAGE = 1000
COLUMNS = {"day": ("day",), "key": ("key_name", "key_id"), "model": ("model",)}
"""Columns of each group. The ids among them identify a line: names of keys may be reused."""
FIGURES = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
COST_COLUMNS = {
    "day": "day",
    "tenant": "tenant",
    "key": "key_name",
    "base": "base",
    "model": "model",
    "job": "job_id",
}
"""As the API has them; its own table needs packages that a client does without."""
COST_FIGURES = ("attempts", "gpu_minutes", *FIGURES)
KEY_ID = r"key-[0-9a-z]{26}"
FIRST_DAY = "0001-01-01"


def usage(
    first: Annotated[
        str | None,
        typer.Option("--from", metavar="YYYY-MM-DD", help="First day, UTC. Default: 29 days before the last day."),
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", metavar="YYYY-MM-DD", help="Last day, UTC. Default: today.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help=(
                "Comma-separated fields to group by: day, key, model. With --costs: day, key, base, model, job and, for "
                "operators, tenant."
            ),
            show_default="day,key,model; with --costs day,key,base",
        ),
    ] = None,
    has_costs: Annotated[
        bool,
        typer.Option(
            "--costs", help="Show GPU-minutes of jobs next to tokens, with their prices if an operator has set them."
        ),
    ] = False,
    key: Annotated[str | None, typer.Option(help="Only usage of this key (id or name); it may be revoked.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help=(
                "Only usage of this base or adapter (its id or the beginning), or of the adapters that this alias "
                "points to now."
            )
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            envvar="MENS_TENANT",
            callback=check_tenant,
            help="Only usage of this tenant. Default: MENS_API_KEY's tenant.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print JSON.")] = False,
) -> None:
    """Show requests and tokens by day, key and model: with an admin's key the tenant's, otherwise the key's own."""
    if has_costs:
        if key or model:
            raise typer.BadParameter("--costs takes neither --key nor --model; group them by key, base or model.")
        _print_costs(first, last, by or "day,key,base", tenant, as_json)
        return
    by, key_id = "day,key,model" if by is None else by, key
    # An id is not looked up: listing keys requires an admin's key, and every caller may name its own id.
    if key and not re.fullmatch(KEY_ID, key):
        key_id = find_id(RemoteKeys(tenant), key, revoked=True)
    options = {"from": first, "to": last, "group_by": by, "key_id": key_id}
    query = {name: value for name, value in options.items() if value is not None}
    models = _resolve_model(model, tenant) if model else []
    queries = [{**query, "model": name} for name in models] or [query]
    lines = _add_up(line for one_query in queries for line in _read_lines(one_query, tenant))
    if not lines:
        for name in models:
            _check_model(name, tenant)
        note(_describe_empty(query, models))
    if as_json:
        typer.echo(json.dumps(lines, indent=2))
        return
    groups = [part.strip() for part in by.split(",")]
    columns = [name for group in COLUMNS if group in groups for name in COLUMNS[group]] + list(FIGURES)
    print_table([name.replace("_", " ") for name in columns], [[str(line[name]) for name in columns] for line in lines])


def _print_costs(first: str | None, last: str | None, by: str, tenant: str | None, as_json: bool) -> None:
    parameters = {"from": first, "to": last, "group_by": by}
    query = {name: value for name, value in parameters.items() if value is not None}
    lines = list(_read_lines(query, tenant, "/v1/usage/costs"))
    if not lines:
        note(_describe_empty(query, []))
    if as_json:
        typer.echo(json.dumps(lines, indent=2))
        return
    groups = [part.strip() for part in by.split(",")]
    columns = [name for group, name in COST_COLUMNS.items() if group in groups] + list(COST_FIGURES)
    # Without a price the column would be empty.
    columns += [name for name in ("gpu_cost", "token_cost") if any(line[name] is not None for line in lines)]
    columns += ["currency"] if columns[-1] not in COST_FIGURES else []
    rows = [[f"{line[name]}" if line[name] is not None else "" for name in columns] for line in lines]
    print_table([name.replace("_", " ") for name in columns], rows)


def _resolve_model(model: str, tenant: str | None) -> list[str]:
    """Return the names that usage is recorded under: for an alias its current targets, otherwise the base or the full
    adapter id.
    """
    for alias in find_all("/v1/aliases", tenant):
        if alias["name"] == model:
            adapters = [target["adapter"] for target in alias["targets"]]
            note(
                f"note: usage is recorded by adapter: this shows {', '.join(adapters)} under any name, "
                f"not earlier targets of {model}"
            )
            return adapters
    return [resolve_adapter_id(model, tenant=tenant)]


def _check_model(name: str, tenant: str | None) -> None:
    """End the command with ``MODEL_NOT_FOUND`` if the name never belonged to a model, because it is then misspelt."""
    path = quote(name, safe="")
    # A deleted adapter keeps its record.
    is_adapter = find(f"/v1/adapters/{path}", tenant)
    if not is_adapter and not any(_read_lines({"from": FIRST_DAY, "group_by": "", "model": name}, tenant)):
        call("GET", f"/v1/models/{path}", tenant)


def _add_up(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines of several models, in the API's order; lines of the same group are added up."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        group = tuple(line[name] or "" for name in ("day", "key_id", "model"))
        total = sums.setdefault(group, {**line, **dict.fromkeys(FIGURES, 0)})
        total |= {name: total[name] + line[name] for name in FIGURES}
    return [sums[group] for group in sorted(sums)]


def _describe_empty(query: dict[str, str], models: list[str]) -> str:
    of = f" of {', '.join(models)}" if models else ""
    by = f" by {query['key_id']}" if "key_id" in query else ""
    since = f" from {query['from']}" if "from" in query else ""
    until = f" to {query['to']}" if "to" in query else ""
    return f"No usage{of}{by}{since}{until}{'' if since or until else ' in the last 30 days'}."


def _read_lines(query: dict[str, str], tenant: str | None, path: str = "/v1/usage") -> Iterator[dict[str, Any]]:
    """Yield the lines of all pages of a query."""
    more, after = True, dict[str, str]()
    while more:
        page = call("GET", path, tenant, params={**query, **after, "limit": PAGE})
        yield from page["data"]
        more = page["has_more"]
        after = {"after": page["data"][-1]["id"]} if more else {}

"""``mens permissions``: which other tenants may use an adapter (OpenAI's checkpoint permissions)."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.client.connection import call, fail, find_pages
from cli.client.json_errors import Json
from cli.commands.aliases import require_adapter_id
from cli.commands.keys.commands import check_tenant
from cli.output import format_minute, print_table

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Permissions lend an adapter to other tenants: create, list, delete. They need an admin's key "
        "(docs/tenants.md)."
    ),
)
Adapter = Annotated[str, typer.Argument(help="Id of an adapter or a checkpoint, or its beginning.")]


def _check_tenants(names: list[str]) -> list[str]:
    """Callback of an argument: refuse the first name that is not a valid tenant name."""
    for name in names:
        check_tenant(name)
    return names


@app.command("create")
def create(
    adapter: Adapter,
    tenants: Annotated[list[str], typer.Argument(callback=_check_tenants, help="Tenants that may use the adapter.")],
    as_json: Json = False,
) -> None:
    """Let other tenants use an adapter. Existing permissions stay."""
    adapter = require_adapter_id(adapter)
    _print(call("POST", _path(adapter), json={"project_ids": tenants})["data"], as_json)


@app.command("list")
def list_permissions(adapter: Adapter, as_json: Json = False) -> None:
    """Show which tenants may use an adapter, newest first."""
    _print(list(find_pages(_path(require_adapter_id(adapter)))), as_json)


@app.command("delete")
def delete(
    adapter: Adapter,
    tenant: Annotated[str, typer.Argument(help="The tenant, or the permission's id.")],
) -> None:
    """Revoke a permission. Refused while aliases or unfinished jobs of that tenant need the adapter."""
    adapter = require_adapter_id(adapter)
    permissions = [
        permission
        for permission in find_pages(_path(adapter))
        if tenant in (permission["id"], permission["project_id"])
    ]
    if not permissions:
        fail(f"{tenant} has no permission for {adapter}. List them: `mens permissions list {adapter}`.")
    call("DELETE", f"{_path(adapter)}/{quote(permissions[0]['id'], safe='')}")
    typer.echo(f"{permissions[0]['project_id']} may no longer use {adapter}.")


def _path(adapter: str) -> str:
    return f"/v1/fine_tuning/checkpoints/{quote(adapter, safe='')}/permissions"


def _print(permissions: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(permissions, indent=2))
        return
    rows = [
        (permission["id"], permission["project_id"], format_minute(permission["created_at"]))
        for permission in permissions
    ]
    print_table(("permission", "tenant", "since (UTC)"), rows)

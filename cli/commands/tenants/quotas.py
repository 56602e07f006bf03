"""``mens tenants``: tenants side by side, and their quotas, for operators; each tenant's own quota, for everyone."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cli.client.connection import call, find, find_all
from cli.client.json_errors import Json
from cli.commands.keys.commands import NO_LIMIT, check_tenant
from cli.output import format_minute, format_size, print_table
from shared.database.tenancy import LARGEST_LIMIT

app = typer.Typer(
    no_args_is_help=True,
    help="Tenants: jobs, GPU-minutes of the month, keys, files, last activity; and job quotas.\n\n"
    "Any key may `show` its tenant's quota; the other commands need an operator's key (an admin of `shared`).",
)
MOST_MINUTES = 1e9
FORBIDDEN, NOT_FOUND = 403, 404
Tenant = Annotated[
    str | None,
    typer.Option(envvar="MENS_TENANT", callback=check_tenant, help="Tenant. Default: MENS_API_KEY's tenant."),
]


@app.command("list")
def list_tenants(as_json: Json = False) -> None:
    """Show all tenants with their use of the quota, keys, files and last activity."""
    tenants = find_all("/v1/tenants")
    if as_json:
        typer.echo(json.dumps(tenants, indent=2))
        return
    rows = [
        (
            tenant["tenant"],
            _of(tenant["running"], tenant["running_jobs"]),
            _of(tenant["queued"], tenant["queued_jobs"]),
            _of(tenant["gpu_minutes_used"], tenant["gpu_minutes_per_month"]),
            f"{tenant['gpu_minutes_held']:g}",
            str(tenant["valid_keys"]),
            str(tenant["adapters"]),
            format_size(tenant["stored_bytes"]),
            format_minute(tenant["last_active_at"]),
        )
        for tenant in tenants
    ]
    print_table(
        ("tenant", "running", "queued", "GPU minutes", "held", "keys", "adapters", "stored", "last active (UTC)"), rows
    )


@app.command("show")
def show(tenant: Tenant = None, as_json: Json = False) -> None:
    """Show a tenant's quota and its use; for an operator also keys, files and last activity."""
    use = call("GET", "/v1/quota", tenant=tenant)
    record = find(f"/v1/tenants/{use['tenant']}", tenant, absent=(FORBIDDEN, NOT_FOUND))
    _print(record or use, as_json)
    if record and not as_json:
        typer.echo(f"files        {record['files']}, {format_size(record['stored_bytes'])}")
        typer.echo(f"adapters     {record['adapters']}")
        typer.echo(f"last active  {format_minute(record['last_active_at']) or 'never'}")
        typer.echo(f"keys         {record['valid_keys']} valid")
        rows = [
            (key["id"], key["name"], key["role"], _state(key), format_minute(key["last_used_at"]))
            for key in record["keys"]
        ]
        print_table(("id", "name", "role", "state", "last used (UTC)"), rows)


@app.command("limit")
def limit(
    tenant: Annotated[str, typer.Argument(callback=check_tenant, help="Tenant, e.g. acme.")],
    running: Annotated[
        str | None, typer.Option(metavar="N|none", help="Running jobs; further jobs wait. Default: unchanged.")
    ] = None,
    queued: Annotated[
        str | None,
        typer.Option(metavar="N|none", help="Queued jobs; further jobs are refused. Default: unchanged."),
    ] = None,
    gpu_minutes: Annotated[
        str | None,
        typer.Option(metavar="N|none", help="GPU-minutes per calendar month (UTC). Default: unchanged."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change the quota of a tenant; for operators. It does not end running or queued jobs.

    Omitted options stay unchanged, and `none` removes a limit: `mens tenants limit acme --running 2 --gpu-minutes none`.
    """
    options = {
        "running_jobs": ("--running", running, LARGEST_LIMIT),
        "queued_jobs": ("--queued", queued, LARGEST_LIMIT),
        "gpu_minutes_per_month": ("--gpu-minutes", gpu_minutes, MOST_MINUTES),
    }
    changes = {field: _amount(*option) for field, option in options.items() if option[1] is not None}
    if not changes:
        raise typer.BadParameter(
            "Give one or more of --running N, --queued N and --gpu-minutes N; `none` removes a limit."
        )
    _print(call("PATCH", "/v1/quota", tenant=tenant, json=changes), as_json)


def _print(use: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(use, indent=2))
        return
    typer.echo(f"tenant       {use['tenant']}")
    typer.echo(f"running      {_of(use['running'], use['running_jobs'])}")
    typer.echo(f"queued       {_of(use['queued'], use['queued_jobs'])}")
    held = f", {use['gpu_minutes_held']:g} reserved by running jobs" if use["gpu_minutes_held"] else ""
    used = _of(use["gpu_minutes_used"], use["gpu_minutes_per_month"])
    typer.echo(f"GPU minutes  {used}{held}; the next month starts {use['resets_at'][:10]}")


def _state(key: dict[str, Any]) -> str:
    if key["revoked_at"]:
        return "revoked"
    return f"until {format_minute(key['expires_at'])}" if key["expires_at"] else "valid"


def _of(amount: float, limit: float | None) -> str:
    return f"{amount:g} of {limit:g}" if limit is not None else f"{amount:g}"


def _amount(option: str, text: str | None, most: float) -> float | None:
    if text is None or text.lower() == NO_LIMIT:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) <= most):
        raise typer.BadParameter(
            f"{text!r} is neither a number from 0 to {most:.0f} nor {NO_LIMIT}.", param_hint=option
        )
    return int(text)

"""``mens keys``: creates, lists, changes, rotates and revokes API keys, over the API or in the database of this machine.

It uses the API if ``MENS_API_URL`` is set. Both ways show a key as the API does, and end the command with the error on
a failure.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer

from cli.client.connection import note
from cli.client.json_errors import Json
from cli.commands.keys.store import KeyRecord, find_id, key_store
from cli.output import format_minute, print_table
from cli.standalone.home import OWN_KEY
from cli.times import UNIT_SECONDS, parse_duration, parse_time
from shared.database.tenancy import (
    LARGEST_LIMIT,
    MOST_TOKENS,
    TENANT_PATTERN,
    TENANT_RULE,
    Role,
    describe_rights,
)

NO_LIMIT = "none"
LONGEST_OVERLAP = 90 * UNIT_SECONDS["d"]
app = typer.Typer(
    no_args_is_help=True,
    help="API keys: create, list, limit, change, rotate, revoke.\n\n"
    "With MENS_API_URL set, the commands manage that API's keys, and MENS_API_KEY must be an admin's. Without it, "
    "they manage "
    "the keys of the installation on this machine (MENS_HOME) and need no key; create the first key this way.",
)


def check_tenant(name: str | None) -> str | None:
    """Callback of a tenant option: refuse an invalid tenant name and explain the valid form."""
    if name is not None and not re.fullmatch(TENANT_PATTERN, name):
        raise typer.BadParameter(f"{name!r} is not {TENANT_RULE}.")
    return name


def check_role(name: str) -> str:
    """Callback of a role option: refuse an unknown role and list the roles."""
    if name not in list(Role):
        raise typer.BadParameter(f"{name!r} is not a role; choose one of {', '.join(Role)}.")
    return name


def _check_new_role(name: str | None) -> str | None:
    return name if name is None else check_role(name)


WHEN_HELP = "When it expires: 12h, 90d, 2027-01-31, 2027-01-31T18:00Z."
Tenant = Annotated[
    str | None,
    typer.Option(
        envvar="MENS_TENANT",
        callback=check_tenant,
        help="Only keys of this tenant. Default: over the API, MENS_API_KEY's tenant; otherwise all tenants.",
    ),
]
KeyName = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="Id of the key, any unique part of the id, or the name of a key that is not revoked.",
    ),
]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Who or what uses the key, e.g. alice or ci.")],
    tenant: Annotated[
        str | None,
        typer.Option(
            envvar="MENS_TENANT",
            callback=check_tenant,
            help=(
                "The key's tenant; a tenant is created with its first key. Default: over the API, the tenant of "
                "MENS_API_KEY; otherwise `shared`."
            ),
        ),
    ] = None,
    role: Annotated[
        str,
        typer.Option(
            metavar="|".join(Role),
            callback=check_role,
            help="Rights of the key; an admin of `shared` is an operator, who may act in every tenant.",
        ),
    ] = str(Role.ADMIN),
    rpm: Annotated[
        str | None, typer.Option(metavar="N|none", help="Model requests per minute. Default: unlimited.")
    ] = None,
    concurrent: Annotated[
        str | None, typer.Option(metavar="N|none", help="Concurrent model requests. Default: unlimited.")
    ] = None,
    tpm: Annotated[
        str | None,
        typer.Option(metavar="N|none", help="Tokens of prompts and answers per minute. Default: unlimited."),
    ] = None,
    expires: Annotated[str | None, typer.Option(metavar="WHEN", help=f"{WHEN_HELP} Default: never.")] = None,
) -> None:
    """Create a key. Its secret is printed once and stored only as a hash.

    An admin of `shared` is an operator, who may do everything in every tenant.
    """
    limits = {"requests_per_minute": _limit("--rpm", rpm), "concurrent_requests": _limit("--concurrent", concurrent)}
    limits["tokens_per_minute"] = _limit("--tpm", tpm, MOST_TOKENS)
    key = key_store(tenant).create(name, Role(role), limits, _expiry(expires))
    rights = describe_rights(Role(key["role"]), key["tenant"])
    typer.echo(f"{key['id']} for {key['name']}, {rights}; the secret is shown only once:", err=True)
    typer.echo(key["secret"])


@app.command("list")
def list_keys(tenant: Tenant = None, as_json: Json = False) -> None:
    """Show keys, without their secrets."""
    keys = key_store(tenant).all()
    if as_json:
        typer.echo(json.dumps(keys, indent=2))
        return
    rows = [
        (
            key["id"],
            key["name"],
            key["tenant"],
            key["role"],
            str(key["requests_per_minute"] or ""),
            str(key["concurrent_requests"] or ""),
            str(key.get("tokens_per_minute") or ""),
            format_minute(key["created_at"]),
            format_minute(key.get("expires_at")),
            format_minute(key.get("last_used_at")),
            "yes" if key["revoked_at"] else "",
        )
        for key in keys
    ]
    columns = ("id", "name", "tenant", "role", "rpm", "concurrent", "tpm", "created", "expires", "last used", "revoked")
    print_table(columns, rows)


@app.command("limit")
def limit(
    name: KeyName,
    rpm: Annotated[
        str | None, typer.Option(metavar="N|none", help="Model requests per minute. Default: unchanged.")
    ] = None,
    concurrent: Annotated[
        str | None, typer.Option(metavar="N|none", help="Concurrent model requests. Default: unchanged.")
    ] = None,
    tpm: Annotated[
        str | None, typer.Option(metavar="N|none", help="Tokens of prompts and answers per minute. Default: unchanged.")
    ] = None,
    tenant: Tenant = None,
) -> None:
    """Change the limits of a key, from its next request on.

    Omitted options stay unchanged, and `none` removes a limit: `mens keys limit bot --rpm 120 --concurrent none`.
    """
    options = {
        "requests_per_minute": ("--rpm", rpm, LARGEST_LIMIT),
        "concurrent_requests": ("--concurrent", concurrent, LARGEST_LIMIT),
        "tokens_per_minute": ("--tpm", tpm, MOST_TOKENS),
    }
    limits = {field: _limit(option, text, most) for field, (option, text, most) in options.items() if text is not None}
    if not limits:
        raise typer.BadParameter("Give one or more of --rpm N, --concurrent N and --tpm N; `none` removes a limit.")
    keys = key_store(tenant)
    key = keys.change(find_id(keys, name), limits)
    per_minute, at_once = key["requests_per_minute"] or "any number of", key["concurrent_requests"] or "any number"
    tokens = f", {key['tokens_per_minute']} tokens per minute" if key.get("tokens_per_minute") else ""
    typer.echo(f"{_describe(key)}: {per_minute} model requests per minute, {at_once} at once{tokens}")


@app.command("change")
def change(
    name: KeyName,
    new_name: Annotated[
        str | None, typer.Option("--name", help="Who or what uses the key. Default: unchanged.")
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(metavar="|".join(Role), callback=_check_new_role, help="Rights of the key. Default: unchanged."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN|none", help=f"{WHEN_HELP} `none`: never. Default: unchanged.")
    ] = None,
    tenant: Tenant = None,
) -> None:
    """Change the name, role or expiry of a key, from its next request on; `mens keys limit` changes its limits.

    A key that has expired is valid again with a later expiry: `mens keys change bot --expires 90d`.
    """
    changes: dict[str, Any] = {"name": new_name, "role": role}
    changes = {field: value for field, value in changes.items() if value is not None}
    if expires is not None:
        changes["expires_at"] = _expiry(expires)
    if not changes:
        raise typer.BadParameter("Give one or more of --name NAME, --role ROLE and --expires WHEN.")
    keys = key_store(tenant)
    key = keys.change(find_id(keys, name), changes)
    ends = f"expires at {format_minute(key['expires_at'])} UTC" if key["expires_at"] else "never expires"
    typer.echo(f"{_describe(key)}: {key['role']}, {ends}")


@app.command("rotate")
def rotate(
    name: KeyName,
    overlap: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long the old secret stays valid: 30m, 24h, 7d; 0: not at all."),
    ] = "24h",
    tenant: Tenant = None,
) -> None:
    """Give a key a new secret; the old one stays valid for --overlap. The new secret is printed once.

    The key's id, name, limits and usage stay. A secret that an earlier rotation replaced becomes invalid immediately.
    """
    seconds = 0 if overlap == "0" else parse_duration(overlap)
    if seconds is None or seconds > LONGEST_OVERLAP:
        raise typer.BadParameter(
            f"{overlap!r} is not a duration of at most 90d, such as 30m, 24h or 7d.", param_hint="--overlap"
        )
    keys = key_store(tenant)
    key = keys.rotate(find_id(keys, name), seconds)
    until = key["previous_secret_until"]
    ends = f"is valid until {format_minute(until)} UTC" if until else "is no longer valid"
    typer.echo(f"{_describe(key)}: the old secret {ends}; the new one is shown only once:", err=True)
    typer.echo(key["secret"])


@app.command("revoke")
def revoke(name: KeyName, tenant: Tenant = None) -> None:
    """Revoke a key; requests with it are refused from now on."""
    keys = key_store(tenant)
    key = keys.revoke(find_id(keys, name))
    typer.echo(f"{_describe(key)} is revoked")
    if re.fullmatch(rf"{OWN_KEY}(-\d+)?", key["name"]):
        note("note: this was the installation's own key; restart `mens up` to create a new one")


def _expiry(text: str | None) -> str | None:
    """Convert a time to the API's format; None: never. A date means its beginning; a time without a zone is UTC."""
    if text is None or text.lower() == NO_LIMIT:
        return None
    try:
        return parse_time(text, ahead=True)
    except ValueError:
        message = f"{text!r} is not a valid time: give 12h, 90d, 2027-01-31, 2027-01-31T18:00Z, or {NO_LIMIT}."
        raise typer.BadParameter(message, param_hint="--expires") from None


def _limit(option: str, text: str | None, largest: int = LARGEST_LIMIT) -> int | None:
    if text is None or text.lower() == NO_LIMIT:
        return None
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= largest):
        raise typer.BadParameter(f"{text!r} is not 1 to {largest}, or {NO_LIMIT}.", param_hint=option)
    return int(text)


def _describe(key: KeyRecord) -> str:
    return f"{key['id']} ({key['name']} of {key['tenant']})"

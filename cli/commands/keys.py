"""``mens keys``: API keys, over the API, or on the machine that has the database, where the first one is made."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from cli.connection import note
from cli.home import OWN_KEY
from cli.key_stores import Facts, find_id, key_store
from cli.tables import print_table
from shared.tenancy import LARGEST_LIMIT, TENANT_PATTERN, TENANT_RULE, Role, describe_rights

NO_LIMIT = "none"

app = typer.Typer(
    no_args_is_help=True,
    help="API keys: create, list, limit, revoke.\n\n"
    "With MENS_API_URL set, they are those of that API, and MENS_API_KEY has to be an admin's. Without it, they are those in "
    "the database of the installation on this machine (MENS_HOME), and nobody is asked for a key: so the first one is made.",
)


def check_tenant(name: str | None) -> str | None:
    """For a tenant's option: refuse in words what is no tenant's name."""
    if name is not None and not re.fullmatch(TENANT_PATTERN, name):
        raise typer.BadParameter(f"{name!r} is not {TENANT_RULE}.")
    return name


def _check_role(name: str) -> str:
    if name not in list(Role):
        raise typer.BadParameter(f"{name!r} is no role; it is one of {', '.join(Role)}.")
    return name


Tenant = Annotated[
    str | None,
    typer.Option(
        envvar="MENS_TENANT",
        callback=check_tenant,
        help="Only this tenant's; left out: over the API those of MENS_API_KEY's tenant, else everybody's.",
    ),
]
KeyName = Annotated[str, typer.Argument(metavar="KEY", help="Its id, or its name as long as it is not revoked.")]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is, e.g. alice or ci.")],
    tenant: Annotated[
        str | None,
        typer.Option(
            envvar="MENS_TENANT",
            callback=check_tenant,
            help="The tenant that it belongs to; it comes to be with its first key. "
            "Left out: over the API that of MENS_API_KEY, else `shared`.",
        ),
    ] = None,
    role: Annotated[
        str,
        typer.Option(
            metavar="|".join(Role),
            callback=_check_role,
            help="What it may do; an admin of `shared` may act in every tenant.",
        ),
    ] = str(Role.ADMIN),
    rpm: Annotated[
        str | None, typer.Option(metavar="N|none", help="Requests to models a minute; unlimited when left out.")
    ] = None,
    concurrent: Annotated[
        str | None, typer.Option(metavar="N|none", help="Requests to models at once; unlimited when left out.")
    ] = None,
) -> None:
    """Make a key. Its secret is printed once and stored only as a hash.

    An admin of `shared` is an operator, who may do everything in every tenant.
    """
    limits = {"requests_per_minute": _limit("--rpm", rpm), "concurrent_requests": _limit("--concurrent", concurrent)}
    key = key_store(tenant).create(name, Role(role), limits)
    rights = describe_rights(Role(key["role"]), key["tenant"])
    typer.echo(f"{key['id']} for {key['name']}, {rights}; the secret is shown this once:", err=True)
    typer.echo(key["secret"])


@app.command("list")
def list_keys(tenant: Tenant = None) -> None:
    """Show keys, without their secrets."""
    rows = [
        (
            key["id"],
            key["name"],
            key["tenant"],
            key["role"],
            str(key["requests_per_minute"] or ""),
            str(key["concurrent_requests"] or ""),
            key["created_at"][:16].replace("T", " "),
            "yes" if key["revoked_at"] else "",
        )
        for key in key_store(tenant).all()
    ]
    print_table(("id", "name", "tenant", "role", "rpm", "concurrent", "created", "revoked"), rows)


@app.command("limit")
def limit(
    name: KeyName,
    rpm: Annotated[
        str | None, typer.Option(metavar="N|none", help="Requests to models a minute; left out: unchanged.")
    ] = None,
    concurrent: Annotated[
        str | None, typer.Option(metavar="N|none", help="Requests to models at once; left out: unchanged.")
    ] = None,
    tenant: Tenant = None,
) -> None:
    """Change how much a key may ask, from its next request on.

    What is left out stays as it is, and `none` lifts a limit: `mens keys limit bot --rpm 120 --concurrent none`.
    """
    given = {"requests_per_minute": ("--rpm", rpm), "concurrent_requests": ("--concurrent", concurrent)}
    limits = {field: _limit(option, text) for field, (option, text) in given.items() if text is not None}
    if not limits:
        raise typer.BadParameter("Say what shall change: --rpm N, --concurrent N, or both; `none` is no limit.")
    keys = key_store(tenant)
    key = keys.limit(find_id(keys, name), limits)
    typer.echo(f"{_describe(key)}: {_describe_limits(key)}")


@app.command("revoke")
def revoke(name: KeyName, tenant: Tenant = None) -> None:
    """Revoke a key; requests that carry it are refused from now on."""
    keys = key_store(tenant)
    key = keys.revoke(find_id(keys, name))
    typer.echo(f"{_describe(key)} is revoked")
    if re.fullmatch(rf"{OWN_KEY}(-\d+)?", key["name"]):
        note("note: this was the installation's own key; restart `mens up` to make a new one")


def _limit(option: str, text: str | None) -> int | None:
    if text is None or text.lower() == NO_LIMIT:
        return None
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= LARGEST_LIMIT):
        raise typer.BadParameter(f"{text!r} is not 1 to {LARGEST_LIMIT}, or {NO_LIMIT}.", param_hint=option)
    return int(text)


def _describe(key: Facts) -> str:
    return f"{key['id']} ({key['name']} of {key['tenant']})"


def _describe_limits(key: Facts) -> str:
    rpm, concurrent = key["requests_per_minute"] or "any number of", key["concurrent_requests"] or "any number"
    return f"{rpm} requests to models a minute, {concurrent} at once"

"""``mens keys``: API keys. Works on the database itself, because the first key must come from somewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import fail
from cli.tables import print_table
from shared.errors import MensError
from shared.settings import Settings, read_settings
from shared.tenancy import LARGEST_LIMIT, SHARED, KeyLimits, Role, describe_rights

if TYPE_CHECKING:
    from shared.keys import Key, Keys

NO_LIMIT = "none"

app = typer.Typer(
    no_args_is_help=True, help="API keys: create, list, limit, revoke (on the machine that has the database)."
)


def _keys() -> Keys:
    from shared.db import Database  # slow to import
    from shared.keys import Keys

    return Keys(Database(read_settings(Settings).database_url))


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is, e.g. alice or ci.")],
    tenant: Annotated[
        str,
        typer.Option(envvar="MENS_TENANT", help="The tenant that it belongs to; it comes to be with its first key."),
    ] = SHARED,
    role: Annotated[
        Role, typer.Option(help="What it may do; an admin of `shared` may act in every tenant.")
    ] = Role.ADMIN,
    rpm: Annotated[
        int | None, typer.Option(min=1, max=LARGEST_LIMIT, help="Requests to models a minute; unlimited when left out.")
    ] = None,
    concurrent: Annotated[
        int | None, typer.Option(min=1, max=LARGEST_LIMIT, help="Requests to models at once; unlimited when left out.")
    ] = None,
) -> None:
    """Make a key. Its secret is printed once and stored only as a hash.

    Without --tenant and --role it is an operator's: an admin of `shared`, who may do everything in every tenant.
    """
    limits = KeyLimits(requests_per_minute=rpm, concurrent_requests=concurrent)
    try:
        key, secret = _keys().create(name, tenant, role, limits)
    except MensError as error:
        fail(str(error))
    rights = describe_rights(key.role, key.tenant)
    typer.echo(f"{key.id} for {key.name}, {rights}; the secret is shown this once:", err=True)
    typer.echo(secret)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(envvar="MENS_TENANT", help="Only this tenant's.")] = None,
) -> None:
    """Show all keys, without their secrets."""
    rows = [
        (
            key.id,
            key.name,
            key.tenant,
            str(key.role),
            str(key.requests_per_minute or ""),
            str(key.concurrent_requests or ""),
            f"{key.created_at:%Y-%m-%d %H:%M}",
            "yes" if key.revoked_at else "",
        )
        for key in _keys().all(tenant)
    ]
    print_table(("id", "name", "tenant", "role", "rpm", "concurrent", "created", "revoked"), rows)


@app.command("limit")
def limit(
    key_id: Annotated[str, typer.Argument(help="Id from `mens keys list`.")],
    rpm: Annotated[
        str | None, typer.Option(metavar="N|none", help="Requests to models a minute; left out: unchanged.")
    ] = None,
    concurrent: Annotated[
        str | None, typer.Option(metavar="N|none", help="Requests to models at once; left out: unchanged.")
    ] = None,
) -> None:
    """Change how much a key may ask, from its next request on.

    What is left out stays as it is, and `none` lifts a limit: `mens keys limit ID --rpm 120 --concurrent none`.
    """
    given = {"requests_per_minute": ("--rpm", rpm), "concurrent_requests": ("--concurrent", concurrent)}
    limits = {field: _limit(option, text) for field, (option, text) in given.items() if text is not None}
    if not limits:
        raise typer.BadParameter("Say what shall change: --rpm N, --concurrent N, or both; `none` is no limit.")
    try:
        key = _keys().limit(key_id, KeyLimits(**limits))
    except MensError as error:
        fail(str(error))
    typer.echo(f"{key.id} ({key.name}): {_describe_limits(key)}")


@app.command("revoke")
def revoke(key_id: Annotated[str, typer.Argument(help="Id from `mens keys list`.")]) -> None:
    """Revoke a key; requests that carry it are refused from now on."""
    try:
        key = _keys().revoke(key_id)
    except MensError as error:
        fail(str(error))
    typer.echo(f"{key.id} ({key.name}) is revoked")


def _limit(option: str, text: str) -> int | None:
    if text == NO_LIMIT:
        return None
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= LARGEST_LIMIT):
        raise typer.BadParameter(f"{text!r} is not 1 to {LARGEST_LIMIT}, or {NO_LIMIT}.", param_hint=option)
    return int(text)


def _describe_limits(key: Key) -> str:
    rpm, concurrent = key.requests_per_minute or "any number of", key.concurrent_requests or "any number"
    return f"{rpm} requests to models a minute, {concurrent} at once"

"""``mens keys``: API keys. Works on the database itself, because the first key must come from somewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import fail
from cli.tables import print_table
from shared.errors import MensError
from shared.settings import Settings

if TYPE_CHECKING:
    from shared.registry import Registry

app = typer.Typer(no_args_is_help=True, help="API keys: create, list, revoke (on the machine that has the database).")


def _registry() -> Registry:
    from shared.db import Database  # slow to import
    from shared.registry import Registry

    return Registry(Database(Settings().database_url))


@app.command("create")
def create(name: Annotated[str, typer.Argument(help="Whose key it is, e.g. alice or ci.")]) -> None:
    """Make a key. Its secret is printed once and stored only as a hash."""
    try:
        key, secret = _registry().create_key(name)
    except MensError as error:
        fail(str(error))
    typer.echo(f"{key.id} for {key.name}; the secret is shown this once:", err=True)
    typer.echo(secret)


@app.command("list")
def list_keys() -> None:
    """Show all keys, without their secrets."""
    keys = _registry().all_keys()
    rows = [(key.id, key.name, f"{key.created_at:%Y-%m-%d %H:%M}", "yes" if key.revoked_at else "") for key in keys]
    print_table(("id", "name", "created", "revoked"), rows)


@app.command("revoke")
def revoke(key_id: Annotated[str, typer.Argument(help="Id from `mens keys list`.")]) -> None:
    """Revoke a key; requests that carry it are refused from now on."""
    try:
        key = _registry().revoke_key(key_id)
    except MensError as error:
        fail(str(error))
    typer.echo(f"{key.id} ({key.name}) is revoked")

"""``mens storage``: checks that objects named in the database exist in the storage. Works where a tier runs."""

from __future__ import annotations

import typer

from cli.client.connection import fail_with
from cli.output import print_table
from cli.standalone.home import installed_database
from shared.errors import Code, MensError, NotFound
from shared.settings import Settings, read_settings

app = typer.Typer(
    no_args_is_help=True, help="Storage: verify that everything in the database is stored, byte for byte."
)


@app.callback()
def _group() -> None:
    """Keeps `verify` a command of a group, although the group has no other command."""


@app.command()
def verify() -> None:
    """Read every file, adapter, merged model and checkpoint of the database from storage, and compare its SHA-256.

    Use it after a restore, or if you distrust a disk. It changes nothing; the exit code is 1 if something is missing or changed.
    """
    settings = read_settings(Settings)
    database = installed_database(settings)
    if not database:
        message = f"{settings.home} contains no installation."
        fail_with(
            NotFound(Code.INSTALLATION_NOT_FOUND, message, remedy="Set MENS_HOME to an installation's home folder.")
        )
    from shared.artifacts.open_storage import open_storage  # slow to import
    from shared.retention.verification import verify_references

    try:
        verified = list(verify_references(database, open_storage(settings)))
    except MensError as error:
        fail_with(error)
    except OSError as error:
        fail_with(MensError(Code.INTERNAL_ERROR, str(error)))
    bad = [item for item in verified if item.error is not None]
    rows = [(item.what, item.name, item.tenant, item.error or "") for item in bad]
    print_table(("what", "name", "tenant", "what is wrong"), rows)
    typer.echo(f"{len(verified) - len(bad)} verified, {len(bad)} missing or changed")
    if bad:
        raise typer.Exit(1)

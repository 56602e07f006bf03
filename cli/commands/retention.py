"""``mens retention``: what the retention policy deletes. Works on database and disk, where the worker tier runs."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.client.connection import fail_with, note
from cli.output import format_size, print_table
from cli.standalone.home import installed_database
from shared.errors import Code, MensError, NotFound
from shared.settings import RetentionSettings, read_settings

POLICY = [name for name in RetentionSettings.model_fields if name.startswith("retain_")] + ["prepared_bytes"]


def retention(
    apply: Annotated[bool, typer.Option("--apply", help="Delete the listed files. Default: only list them.")] = False,
) -> None:
    """List what the retention policy deletes: old checkpoints and adapters, run folders, merged models, unreferenced folders,
    encoded data.

    The policy is in MENS_RETAIN_… and MENS_PREPARED_BYTES; the worker tier applies the same every hour.
    """
    settings = read_settings(RetentionSettings)
    database = installed_database(settings)
    if not database:
        message, remedy = (
            f"{settings.home} contains no installation.",
            "Set MENS_HOME to an installation's home folder, on its worker's machine.",
        )
        fail_with(NotFound(Code.INSTALLATION_NOT_FOUND, message, remedy=remedy))
    from shared.database.audit.actors import AuditActor, acting  # slow to import
    from shared.retention.cleanup import RetentionRunner

    runner = RetentionRunner(database, settings)
    rules = [(name, value) for name in POLICY if (value := getattr(settings, name)) is not None]
    note(" ".join(f"MENS_{name.upper()}={value}" for name, value in rules))
    try:
        with acting(AuditActor.of_command()):
            findings = runner.apply() if apply else runner.find()
    except MensError as error:
        fail_with(error)
    except OSError as error:
        fail_with(MensError(Code.INTERNAL_ERROR, str(error)))
    rows = [(item.what, item.name, item.tenant, format_size(item.bytes), item.reason) for item in findings]
    print_table(("what", "name", "tenant", "size", "why"), rows)
    total = format_size(sum(item.bytes for item in findings))
    typer.echo(
        f"{len(findings)} removed, {total}" if apply else f"{len(findings)} to remove, {total}; --apply removes them"
    )

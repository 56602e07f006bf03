"""``mens retention``: what may go by the policy. Works on database and disk, where the worker tier runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import fail, note
from cli.home import installed_database
from cli.tables import print_table
from shared.errors import MensError
from shared.settings import RetentionSettings, read_settings

if TYPE_CHECKING:
    from shared.housekeeping import Finding

POLICY = [name for name in RetentionSettings.model_fields if name.startswith("retain_")] + ["prepared_bytes"]
UNITS = ("bytes", "KB", "MB", "GB", "TB")


def retention(
    apply: Annotated[bool, typer.Option("--apply", help="Remove it; without this, only say what would go.")] = False,
) -> None:
    """List what goes by the retention policy: old checkpoints and adapters, run folders, merged models, leftovers, prepared data.

    The policy is in MENS_RETAIN_… and MENS_PREPARED_BYTES; the worker tier applies the same every hour.
    """
    settings = read_settings(RetentionSettings)
    database = installed_database(settings)
    if not database:
        fail(f"there is no installation in {settings.home}. Set MENS_HOME to that of one, on its worker's machine.")
    from shared.housekeeping import NO_RULE, Housekeeping  # slow to import

    housekeeping = Housekeeping(database, settings)
    note(_describe_policy(settings) if housekeeping.has_rule else NO_RULE)
    try:
        found = housekeeping.apply() if apply else housekeeping.find()
    except (MensError, OSError) as error:
        fail(str(error))
    print_table(("what", "name", "tenant", "size", "why"), [_row(finding) for finding in found])
    total = _size(sum(finding.bytes for finding in found))
    typer.echo(f"{len(found)} removed, {total}" if apply else f"{len(found)} would go, {total}; --apply removes them")


def _describe_policy(settings: RetentionSettings) -> str:
    return " ".join(
        f"MENS_{name.upper()}={getattr(settings, name)}" for name in POLICY if name in settings.model_fields_set
    )


def _row(finding: Finding) -> tuple[str, ...]:
    return finding.what, finding.name, finding.tenant, _size(finding.bytes), finding.reason


def _size(count: float) -> str:
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {UNITS[-1]}"

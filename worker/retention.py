"""``python -m worker.retention [--apply]``: `mens retention` where only this tier is installed. One JSON line per finding."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from shared.database.audit.actors import AuditActor, acting
from shared.database.connection import Database
from shared.errors import MensError
from shared.retention.cleanup import RetentionRunner
from shared.settings import read_settings
from worker.settings import WorkerSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Print what the retention policy deletes, and delete it with ``--apply``. Status 1: the database does not exist or
    is unavailable.
    """
    parser = argparse.ArgumentParser(prog="python -m worker.retention")
    parser.add_argument(
        "--apply", action="store_true", help="delete it; without this, only print what would be deleted"
    )
    apply = parser.parse_args(argv).apply
    settings = read_settings(WorkerSettings)
    database = Database(settings.database_url)
    if not database.exists:
        print(
            f"error: {settings.home} does not contain an installation. Set MENS_HOME to the home of an installation.",
            file=sys.stderr,
        )
        return 1
    runner = RetentionRunner(database, settings)
    try:
        with acting(AuditActor.of_command()):
            findings = runner.apply() if apply else runner.find()
    except MensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for finding in findings:
        print(finding.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())

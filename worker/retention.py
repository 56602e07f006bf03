"""``python -m worker.retention [--apply]``: `mens retention` where only this tier is installed. One JSON line a finding."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from shared.db import Database
from shared.errors import MensError
from shared.housekeeping import NO_RULE, Housekeeping
from shared.settings import read_settings
from worker.settings import WorkerSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Say what goes by the retention policy, and with ``--apply`` remove it. Status 1 when there is no database, or it is away."""
    parser = argparse.ArgumentParser(prog="python -m worker.retention")
    parser.add_argument("--apply", action="store_true", help="remove it; without this, only say what would go")
    apply = parser.parse_args(argv).apply
    settings = read_settings(WorkerSettings)
    database = Database(settings.database_url)
    if not database.is_there:
        print(f"error: there is no installation in {settings.home}. Set MENS_HOME to that of one.", file=sys.stderr)
        return 1
    housekeeping = Housekeeping(database, settings)
    if not housekeeping.has_rule:
        print(NO_RULE, file=sys.stderr)
    try:
        found = housekeeping.apply() if apply else housekeeping.find()
    except MensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for finding in found:
        print(finding.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())

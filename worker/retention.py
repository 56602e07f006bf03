"""``python -m worker.retention [--apply]``: `mens retention` where only this tier is installed. One JSON line a finding."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from shared.db import Database
from shared.errors import MensError
from shared.housekeeping import Housekeeping
from shared.settings import read_settings
from worker.settings import WorkerSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Say what goes by the retention policy, and with ``--apply`` remove it. Status 1 when the database is away."""
    parser = argparse.ArgumentParser(prog="python -m worker.retention")
    parser.add_argument("--apply", action="store_true", help="remove it; without this, only say what would go")
    apply = parser.parse_args(argv).apply
    settings = read_settings(WorkerSettings)
    housekeeping = Housekeeping(Database(settings.database_url), settings)
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

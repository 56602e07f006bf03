"""The product's trainer, with the process's CPU time added to each event: ``python -m bench.training.timed_trainer PLAN
RUN_DIR``.

On a shared machine, wall time says little about a program, and CPU time nearly everything.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from worker import train
from worker.training.reporting.telemetry import Telemetry


def main() -> int:
    emit = Telemetry.emit

    def emit_with_cpu_time(self: Telemetry, event: str, payload: Mapping[str, Any]) -> None:
        emit(self, event, {**payload, "cpu_seconds": time.process_time()})

    with patch.object(Telemetry, "emit", emit_with_cpu_time):
        return train.main()


if __name__ == "__main__":
    sys.exit(main())

"""The product's trainer, whose events also tell the CPU time of the process: ``python -m bench.clocked PLAN RUN_DIR``.

On a machine that others use as well, wall time says little about a program, and its CPU time nearly all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from worker import train
from worker.training.telemetry import Telemetry


def main() -> int:
    emit = Telemetry.emit

    def clocked(self: Telemetry, event: str, payload: Mapping[str, Any]) -> None:
        emit(self, event, {**payload, "cpu_seconds": time.process_time()})

    Telemetry.emit = clocked  # type: ignore[method-assign]
    return train.main()


if __name__ == "__main__":
    sys.exit(main())

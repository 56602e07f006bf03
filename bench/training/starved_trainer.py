"""The product's trainer with limited free memory: ``python -m bench.training.starved_trainer BYTES PLAN RUN_DIR …``."""

from __future__ import annotations

import sys
from unittest.mock import patch

from worker import train
from worker.training.model import memory_budget


def main() -> int:
    free_bytes = int(sys.argv[1])
    with patch.object(memory_budget, "available_memory", lambda: free_bytes):
        return train.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())

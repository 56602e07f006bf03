"""The product's trainer on pairs, which writes the CPU time of the reference's pass to ``reference.json`` in the run
folder and adds the CPU time to each event: ``python -m bench.training.timed_pairs PLAN RUN_DIR``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from unittest.mock import patch

from bench.training import timed_trainer
from worker.training.preference import compared, reference

if TYPE_CHECKING:
    import torch

    from worker.training.trainer import TrainingContext


def main() -> int:
    score_reference = reference.score_reference

    def timed(context: TrainingContext, working: Callable[[], None]) -> torch.Tensor:
        began = time.process_time()
        scores = score_reference(context, working)
        seconds = time.process_time() - began
        (context.run_dir / "reference.json").write_text(json.dumps({"cpu_seconds": seconds}))
        return scores

    with patch.object(compared, "score_reference", timed):
        return timed_trainer.main()


if __name__ == "__main__":
    sys.exit(main())

"""The benches that need a real installation, on this one; `test_real_bench.py` and `tests/bench` run the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bench_runs import HOTLOAD_ROWS, check_printed, run_smoke
from tests.system.loop import Installation

RUNS = {
    "bench.gateway --vllm": ("C7", "direct|gateway|bare"),
    "bench.hotload": ("C6", HOTLOAD_ROWS),
}
"""By command: the goals of its JSON lines, and the first column of its tables."""


@pytest.mark.bench
@pytest.mark.timeout(660)
@pytest.mark.parametrize("command", RUNS)
def test_smoke_run_with_a_real_replica_has_every_variant_and_goal(
    tmp_path: Path, installation: Installation, command: str
) -> None:
    stack = installation.stack
    environment = {**stack.settings, "MENS_API_KEY": installation.connection.key, "MENS_HOME": str(stack.home)}
    check_printed(run_smoke(tmp_path, *command.split(), "--running", **environment), *RUNS[command])

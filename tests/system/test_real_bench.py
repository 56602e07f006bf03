"""The benches of serving on SmolLM2-135M-Instruct, each with an installation of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bench_runs import HOTLOAD_ROWS, check_printed, run_smoke

RUNS = {
    "bench.gateway --base smollm2": ("C7-real", "direct|gateway|plain"),
    "bench.hotload --base smollm2": ("C6-real", HOTLOAD_ROWS),
}
"""By command: the goals of its JSON lines, and the first column of its tables."""


@pytest.mark.bench
@pytest.mark.experiment
@pytest.mark.timeout(660)
@pytest.mark.parametrize("command", RUNS)
def test_smoke_run_with_a_replica_of_the_real_base(tmp_path: Path, command: str) -> None:
    check_printed(run_smoke(tmp_path, *command.split()), *RUNS[command])

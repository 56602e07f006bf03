"""The bench of what the API adds to a request, on this installation; `tests/bench` runs all other benches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bench_runs import check_printed, run_smoke
from tests.system.loop import Installation


@pytest.mark.bench
@pytest.mark.timeout(660)
def test_smoke_run_beside_a_real_replica_has_every_variant_and_goal(tmp_path: Path, installation: Installation) -> None:
    environment = {**installation.stack.settings, "MENS_API_KEY": installation.connection.key}
    printed = run_smoke(tmp_path, "bench.gateway", "--vllm", "--running", **environment)
    check_printed(printed, "C7", "direct|gateway|bare")

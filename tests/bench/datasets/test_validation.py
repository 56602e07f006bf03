"""The report's peer is measured at its best."""

from __future__ import annotations

import os

from bench.datasets.validation import VARIANTS, environment_of
from bench.harness.processes import ENVIRONMENT


def test_the_peer_has_a_thread_for_each_processor_as_the_report_has_a_process() -> None:
    own = {variant: ENVIRONMENT | environment_of(variant) for variant in VARIANTS}
    assert own.pop("datasets")["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))
    assert {environment["OMP_NUM_THREADS"] for environment in own.values()} == {"1"}

"""Faults that a whole installation survives: the cheap fault trials, with the same verdicts.

`python -m tests.system.fault_trials` makes all of them; `docs/faults.md` has their outcomes.
`tests/worker/jobs/test_runner.py` tests the same without an installation.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.fault_trials.trials import TRIALS, Site
from tests.system.loop import Installation


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, trial in TRIALS.items() if trial.cheap])
def test_trial_passes(installation: Installation, home: Path, name: str) -> None:
    verdict = TRIALS[name].run(name, Site(installation, home))
    if verdict.untried:
        pytest.skip(f"this test may not mount: {verdict.untried}")
    assert not verdict.bad

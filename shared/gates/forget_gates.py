"""The gate on forgetting: the model is compared with its parent, or its base, on questions and rows that are unrelated
to this training.
"""

from __future__ import annotations

from collections.abc import Iterator

from shared.gates.evidence import Evidence, RunScores
from shared.gates.measures import Loss, missing, score_of, share_lost, unusable
from shared.gates.policy import ForgetGate
from shared.gates.receipt import GateCheck

GENERAL = "general questions"
"""Name of the run of the general questions; no run of a policy has a space in its name."""


def parents_run(name: str) -> str:
    """Return the name that a run by which the parent was judged has in the evidence."""
    return f"the parent's {name}"


def forget_conditions(gate: ForgetGate, evidence: Evidence) -> list[GateCheck | Loss]:
    """Return a comparison of each run, at least one check; they are judged with the comparisons of other gates."""
    forgotten = evidence.forget
    if forgotten is None or not (forgotten.runs or forgotten.missing):
        return [missing(GENERAL, "loss_at_most", gate.max_degradation, "the general questions were not asked")]
    return [*_compared(gate, forgotten.runs), *_absent(gate, forgotten.missing)]


def _compared(gate: ForgetGate, runs: dict[str, RunScores]) -> Iterator[GateCheck | Loss]:
    for name, run in runs.items():
        measure = f"mean score of {name}"
        reason = "the run has no items" if not run.pairs else unusable(run, [None], compares=True)
        if reason:
            yield missing(measure, "loss_at_most", gate.max_degradation, f"{name}: {reason}")
        else:
            yield share_lost(measure, run.pairs, score_of(None), gate.max_degradation)


def _absent(gate: ForgetGate, reasons: dict[str, str]) -> Iterator[GateCheck]:
    for name, reason in reasons.items():
        yield missing(f"mean score of {name}", "loss_at_most", gate.max_degradation, f"{name}: {reason}")

"""The gate on shadow traffic: compares a candidate's answers to real requests with those that the callers got."""

from __future__ import annotations

from shared.gate_outcome import GateStatus
from shared.gates.evidence import Evidence, ShadowCounts
from shared.gates.measures import MOST_ERRORS, missing
from shared.gates.policy import ShadowGate
from shared.gates.receipt import GateCheck
from shared.statistics.sequential import anytime_interval, is_worse

MEASURE = "share of real requests lost"
MOST_ITEMS_NAMED = 1_000_000


def shadow_check(gate: ShadowGate, evidence: Evidence) -> GateCheck:
    """Check a gate on shadow traffic, by an interval that stays valid for any number of looks at any time.

    It passes when the interval lies above -bound, and fails when the candidate was shown to be worse, or the whole
    interval lies below -bound.
    """
    counts = evidence.shadows.get(gate.eval)
    if counts is None:
        return missing(
            MEASURE,
            "loss_at_most",
            gate.max_loss,
            f"no copies were judged by the eval {gate.eval}; set a shadow with `mens aliases set … --shadow … "
            f"--shadow-eval {gate.eval}`",
        )
    seen, errored = counts.wins + counts.losses + counts.ties, counts.errored
    if errored > MOST_ERRORS * (seen + errored):
        return missing(
            MEASURE,
            "loss_at_most",
            gate.max_loss,
            f"{errored} of {seen + errored} copies could not be judged: {counts.last_error}",
        )
    return _judged(gate, counts, seen)


def _judged(gate: ShadowGate, counts: ShadowCounts, seen: int) -> GateCheck:
    low, high = anytime_interval(counts.losses, counts.wins, counts.ties)
    mean = (counts.wins - counts.losses) / seen if seen else 0.0
    status, needed = GateStatus.MISSING_EVIDENCE, None
    if is_worse(counts.losses, counts.wins) or high < -gate.max_loss:
        status = GateStatus.FAILED
    elif low > -gate.max_loss:
        status = GateStatus.PASSED
    elif mean > -gate.max_loss:
        needed = _requests_needed(gate.max_loss, counts, seen)
    counted = f"won {counts.wins}, lost {counts.losses}, alike {counts.ties} of {seen} real requests"
    verdict = {
        GateStatus.PASSED: f"a net loss of more than {max(0.0, -low):.3g} is excluded; at most {gate.max_loss:.3g} is allowed",
        GateStatus.FAILED: f"it is shown to be worse; at most {gate.max_loss:.3g} is allowed",
        GateStatus.MISSING_EVIDENCE: f"a net loss of {max(0.0, -low):.3g} is not excluded; at most {gate.max_loss:.3g} is allowed",
    }[status]
    more = f"; about {needed} requests like these would decide" if needed else ""
    return GateCheck(
        measure=MEASURE,
        status=status,
        message=f"{counted}: {verdict}{more}",
        relation="loss_at_most",
        value=mean if seen else None,
        bound=gate.max_loss,
        n=seen,
        interval=(low, high),
        confidence=0.95,
        items_needed=needed,
    )


def _requests_needed(bound: float, counts: ShadowCounts, seen: int) -> int | None:
    """Estimate the number of requests with which the gate would pass if further ones went like those so far; None if
    unknown.
    """
    if not seen:
        return None
    many = max(seen, 1)
    while many < MOST_ITEMS_NAMED:
        many = many * 5 // 4 + 1
        grown = [round(part * many / seen) for part in (counts.losses, counts.wins, counts.ties)]
        if anytime_interval(grown[0], grown[1], grown[2])[0] > -bound:
            return many
    return None

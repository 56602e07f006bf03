"""Compare numbers of evidence with bounds. An absent number is missing evidence, never a pass."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shared.counted_nouns import counted
from shared.gate_outcome import GateStatus
from shared.gates.evidence import AnswerPair, RunScores, ScoredAnswer
from shared.gates.receipt import GateCheck
from shared.graders.pass_at_k import pass_at_k
from shared.statistics.exact import wilson_interval
from shared.statistics.paired import Comparison, Status, noise_floor
from shared.statistics.wins import rate_interval, shares_won

MOST_ERRORS = 0.1
"""Largest share of missing or unjudged answers with which a run still counts as evidence."""

Relation = Literal["at_least", "at_most"]
"""Side of the bound on which a number passes."""
Measure = Callable[[Sequence[ScoredAnswer], bool], float]
"""Computes an item's number, from 0 to 1, from a model's answers; the flag is the value of an unscored answer."""


@dataclass(frozen=True)
class Loss:
    """A comparison with the incumbent, to be judged together with all others of the policy.

    Attributes:
        old, new: scores of the items, in the same order.
        margin: accepted loss of the mean.
        noise_floor: difference between the incumbent's scores for two sets of answers, if it answered twice.
        least_wins: win rate that must be exceeded, if the scores are shares won.
    """

    measure: str
    old: tuple[float, ...]
    new: tuple[float, ...]
    margin: float
    noise_floor: float | None = None
    least_wins: float | None = None

    @property
    def relation(self) -> Literal["loss_at_most", "wins_above"]:
        """Side of the bound on which the outcome must be."""
        return "loss_at_most" if self.least_wins is None else "wins_above"


def against(measure: str, relation: Relation, value: float | None, bound: float) -> GateCheck:
    """Check one number without items, such as a share of tokens."""
    if value is None or not math.isfinite(value):
        return missing(measure, relation, bound, f"{measure}: it was not measured")
    holds = value >= bound if relation == "at_least" else value <= bound
    return GateCheck(
        measure=measure,
        status=GateStatus.PASSED if holds else GateStatus.FAILED,
        message=_say(measure, value, relation, bound, holds=holds),
        relation=relation,
        value=value,
        bound=bound,
    )


def rate_against(
    measure: str,
    relation: Relation,
    pairs: Sequence[AnswerPair],
    of_item: Measure,
    bound: float,
    min_items: int,
    alpha: float | None = None,
) -> GateCheck:
    """Check the candidate's mean over items. An answer without a score counts as the worst one.

    Args:
        alpha: error level for an adapter that was judged before and may pass by chance: the mean's interval has to
            satisfy the bound. None: the measured mean is judged alone.
    """
    if not pairs:
        return missing(measure, relation, bound, f"{measure}: the run has no items")
    values = [of_item(pair.candidate, relation == "at_most") for pair in pairs]
    total, items = math.fsum(values), len(values)
    check = against(measure, relation, total / items, bound)
    is_rate = all(value in (0.0, 1.0) for value in values)
    confidence = 0.95 if alpha is None else 1 - 2 * alpha
    # Other scores from 0 to 1 vary less than passes and failures with the same mean, so their interval is valid here
    # too.
    interval = wilson_interval(total, items, confidence) if is_rate or alpha is not None else None
    check = check.model_copy(update={"n": items, "interval": interval, "confidence": confidence if interval else None})
    if check.status is not GateStatus.PASSED:
        return check
    if items < min_items:
        return _undecided(check, f"{measure} is {total / items:.3g}, but on only {counted(items, 'item')}", min_items)
    if alpha is not None and interval and not _holds(interval, relation, bound):
        low, high = interval
        reason = (
            f"{check.message}; with repeated sampling its interval must exclude the bound, but "
            f"{counted(items, 'item leaves', 'items leave')} {low:.3g} to {high:.3g} possible"
        )
        return _undecided(check, reason, _items_that_show(total / items, items, relation, bound, confidence))
    return check


def _undecided(check: GateCheck, reason: str, needed: int | None) -> GateCheck:
    message = f"{reason}; {needed} are needed" if needed else reason
    return check.model_copy(update={"status": GateStatus.MISSING_EVIDENCE, "message": message, "items_needed": needed})


def _holds(interval: tuple[float, float], relation: Relation, bound: float) -> bool:
    return interval[0] >= bound if relation == "at_least" else interval[1] <= bound


def _items_that_show(mean: float, items: int, relation: Relation, bound: float, confidence: float) -> int | None:
    """Return the smallest number of items with this mean whose interval satisfies a bound; None if it would be
    unreasonably large.
    """

    def is_enough(count: int) -> bool:
        return _holds(wilson_interval(mean * count, count, confidence), relation, bound)

    enough = next((items << power for power in range(1, 12) if is_enough(items << power)), None)
    return None if enough is None else bisect_left(range(enough), True, lo=items, key=is_enough)


def loss_of(measure: str, pairs: Sequence[AnswerPair], of_item: Measure, margin: float) -> Loss:
    """Make the comparison of both models' items. A missing score counts against the candidate, on either side."""
    old = tuple(of_item(pair.incumbent, True) for pair in pairs)
    new = tuple(of_item(pair.candidate, False) for pair in pairs)
    again = [of_item(pair.repeated, True) for pair in pairs if pair.repeated]
    return Loss(measure, old, new, margin, noise_floor(old, again))


def share_lost(measure: str, pairs: Sequence[AnswerPair], of_item: Measure, share: float) -> Loss | GateCheck:
    """Make the comparison of both models' items whose margin is a share of the previous mean."""
    loss = loss_of(measure, pairs, of_item, share)
    before = sum(loss.old) / len(loss.old)
    if before == 0:
        return missing(measure, "loss_at_most", share, f"{measure} was 0 before, so a loss cannot be measured")
    return replace(loss, margin=share * before)


def wins_of(measure: str, pairs: Sequence[AnswerPair], of_item: Measure, least: float) -> Loss:
    """Make the comparison of the shares of items that each model wins. A missing score counts against the candidate."""
    new = tuple(_share_won(pair, of_item) for pair in pairs)
    # Wins less losses are 2 · rate - 1, so the rate exceeds its bound where the candidate gains this much.
    return Loss(measure, tuple(1 - share for share in new), new, 1 - 2 * least, least_wins=least)


def _share_won(pair: AnswerPair, of_item: Measure) -> float:
    old = [of_item((answer,), True) for answer in pair.incumbent]
    new = [of_item((answer,), False) for answer in pair.candidate]
    won = shares_won(old, new)
    return math.fsum(won) / len(won)


def compared(loss: Loss, outcome: Comparison, confidence: float) -> GateCheck:
    """Make the check of a comparison's outcome."""
    if loss.least_wins is not None:
        return _won(loss, outcome, confidence, loss.least_wins)
    status = GateStatus(outcome.status)
    needed = f"; {counted(outcome.items_needed, 'item')} would decide" if outcome.items_needed else ""
    moved = "" if outcome.difference is None else f"{loss.measure} went from {outcome.old:.3g} to {outcome.new:.3g}"
    allowed = f"it may lose {loss.margin:.3g}" if loss.margin > 0 else f"it must gain {-loss.margin:.3g}"
    message = moved or outcome.reason
    if outcome.interval:
        lost = max(0.0, -outcome.interval[0])
        shown = f"a loss of more than {lost:.3g} is excluded" if outcome.status is Status.PASSED else outcome.reason
        message = f"{moved}: {shown}; {allowed}{needed}{_noise(loss, outcome)}"
    return GateCheck(
        measure=loss.measure,
        status=status,
        message=message,
        relation="loss_at_most",
        value=outcome.difference,
        bound=loss.margin,
        n=outcome.items,
        interval=outcome.interval,
        confidence=confidence,
        p_value=outcome.p_value,
        smallest_visible=outcome.smallest_visible,
        noise_floor=loss.noise_floor,
        items_needed=outcome.items_needed,
    )


def _won(loss: Loss, outcome: Comparison, confidence: float, least: float) -> GateCheck:
    interval = rate_interval(outcome.interval)
    message = outcome.reason
    if interval:
        won, tied, lost = (sum(share == value for share in loss.new) for value in (1.0, 0.5, 0.0))
        shown = f"the lower end of its interval is {interval[0]:.3g}, and must be above {least:.3g}"
        message = f"{loss.measure} is {outcome.new:.3g} ({won} won, {tied} tied, {lost} lost): {shown}"
    return GateCheck(
        measure=loss.measure,
        status=GateStatus(outcome.status),
        message=message,
        relation=loss.relation,
        value=outcome.new,
        bound=least,
        n=outcome.items,
        interval=interval,
        confidence=confidence,
        p_value=outcome.p_value,
    )


def _noise(loss: Loss, outcome: Comparison) -> str:
    """Return a remark that a difference is within the incumbent's own noise; empty if the noise is unknown or smaller."""
    floor = loss.noise_floor
    if not floor or outcome.difference is None or abs(outcome.difference) > floor:
        return ""
    return f"; the incumbent differs from itself by {floor:.3g}, so this difference is noise"


def missing(
    measure: str, relation: Literal["at_least", "at_most", "loss_at_most", "wins_above"], bound: float, reason: str
) -> GateCheck:
    """Make a check without evidence."""
    return GateCheck(
        measure=measure, status=GateStatus.MISSING_EVIDENCE, message=reason, relation=relation, bound=bound
    )


def score_of(criterion: str | None) -> Measure:
    """Return the mean of an item's answers by a criterion; without one, the share that passes all criteria."""

    def of_item(answers: Sequence[ScoredAnswer], unscored: bool) -> float:
        return math.fsum(_score(answer, criterion, unscored) for answer in answers) / len(answers)

    return of_item


def pass_at(k: int, criterion: str | None) -> Measure:
    """Return the unbiased estimate of pass@k for an item; see :func:`shared.graders.pass_at_k.pass_at_k`."""

    def of_item(answers: Sequence[ScoredAnswer], unscored: bool) -> float:
        solved = sum(_score(answer, criterion, unscored) >= 1.0 for answer in answers)
        return pass_at_k(len(answers), solved, k)

    return of_item


def without(criterion: str) -> Measure:
    """Return the share of an item's answers without a finding of a criterion."""
    score = score_of(criterion)
    return lambda answers, unscored: 1.0 - score(answers, not unscored)


def unusable(run: RunScores, criteria: Sequence[str | None], *, compares: bool) -> str | None:
    """Return why a run is not evidence for these criteria; None when it is.

    A run with too many missing answers says nothing about a model: it does not mean that the model scored 0.
    """
    sides = [pair.candidate for pair in run.pairs] + ([pair.incumbent for pair in run.pairs] if compares else [])
    answers = [answer for side in sides for answer in side]
    if compares and (run.incumbent is None or not all(pair.incumbent for pair in run.pairs)):
        return "the run has no answers of an incumbent to compare with"
    if compares and run.incumbent == run.candidate:
        return f"{run.candidate} was compared with itself"
    broken = sum(answer.error is not None for answer in answers)
    if answers and broken / len(answers) > MOST_ERRORS:
        reason = next(answer.error for answer in answers if answer.error is not None)
        return f"{broken} of {len(answers)} answers have no score: {reason}"
    scored = [answer for answer in answers if answer.error is None]
    for criterion in criteria:
        if criterion is not None and not all(criterion in answer.scores for answer in scored):
            return f"the eval {run.eval_id} has no criterion {criterion!r}"
    return None


def _score(answer: ScoredAnswer, criterion: str | None, unscored: bool) -> float:
    if answer.error is not None:
        return float(unscored)
    return float(answer.passed) if criterion is None else min(1.0, max(0.0, answer.scores[criterion]))


def _say(measure: str, value: float, relation: str, bound: float, *, holds: bool) -> str:
    words = {"at_least": "at least", "at_most": "at most"}[relation]
    by = "" if holds else f", {abs(value - bound):.3g} {'below' if relation == 'at_least' else 'above'} it"
    return f"{measure} is {value:.3g}; {words} {bound:.3g} is required{by}"

"""Gates that cannot pass, named before anything is trained: the best possible evidence is judged by the policy itself.

Only what is known beforehand counts: the items of a run, the criteria of its eval, and what a job's preflight says of
its training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from shared.gate_outcome import GateStatus
from shared.gates.evidence import AdapterRef, AnswerPair, Evidence, RunScores, ScoredAnswer, TrainingReport
from shared.gates.measures import Loss
from shared.gates.policy import CollateralDamage, ContextGate, Gate, GatePolicy, RunGate, RunTemplate, Throughput
from shared.gates.receipt import GateCheck
from shared.gates.run_gates import Question, questions_of, run_parts
from shared.gates.training_gates import training_check
from shared.statistics.paired import Status, compare

ENOUGH_ITEMS = 200
"""Items with which every margin of a usual size can be shown; more of them say nothing new here."""
CANDIDATE, INCUMBENT = AdapterRef(id="candidate", digest="1" * 64), AdapterRef(id="incumbent", digest="0" * 64)
BEFORE = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about a run that are known before it begins.

    Attributes:
        items: number of its items; None: not known.
        contexts: number of items by ``item.context``.
        criteria: names of the eval's criteria; None: not known.
    """

    items: int | None = None
    contexts: Mapping[str, int] = field(default_factory=dict)
    criteria: frozenset[str] | None = None


class Hopeless(NamedTuple):
    """A gate that cannot pass, by the name of its row, and why."""

    row: str
    gate: Gate
    reason: str

    def describe(self) -> str:
        """Return one sentence."""
        effect = "blocks the alias" if self.gate.block else "only warns"
        return f"The gate {self.row} cannot pass ({effect}): {self.reason}."


def hopeless_gates(
    policy: GatePolicy,
    facts: Mapping[str, RunFacts],
    *,
    training: TrainingReport | None = None,
    is_imported: bool = False,
    compares: bool = True,
) -> Iterator[Hopeless]:
    """Yield every gate that no adapter can pass, and every comparison that a merely equal adapter cannot pass.

    Args:
        policy: its gates and runs.
        facts: by the policy's name for the run; a missing run is not judged.
        training: what a job's preflight says of its training; None: not known.
        is_imported: whether the adapter was not trained here, so that no report of its training exists.
        compares: whether the alias has an incumbent, or the base is one.
    """
    for row, gate in policy.gates.configured():
        if not gate.applies:
            continue
        reasons: list[str] = []
        if not isinstance(gate, RunGate):
            reasons = _of_training(gate, training, is_imported=is_imported)
        elif gate.run is None or gate.run in facts:
            reasons = list(_of_run(row, gate, policy, facts.get(gate.run or "", RunFacts()), compares=compares))
        if reasons:
            yield Hopeless(row, gate, "; ".join(dict.fromkeys(reasons)))


def _of_training(gate: Gate, training: TrainingReport | None, *, is_imported: bool) -> list[str]:
    if (training is None and not is_imported) or (isinstance(gate, Throughput) and training):
        return []
    check = training_check(gate, training)
    if check is None or check.status is GateStatus.PASSED:
        return []
    return ["an imported adapter has no record of its training" if is_imported else check.message]


def _of_run(row: str, gate: RunGate, policy: GatePolicy, facts: RunFacts, *, compares: bool) -> Iterator[str]:
    known = facts.contexts.get(row.partition(".")[2], 0) if isinstance(gate, ContextGate) else facts.items
    enough = max(gate.min_items, ENOUGH_ITEMS)
    items = enough if facts.items is None else min(known or 0, enough)
    for part in run_parts(row, gate, policy, _best_evidence(row, gate, policy, facts, items, compares=compares)):
        reason = _of_loss(part, items) if isinstance(part, Loss) else _of_check(part, items)
        if reason:
            yield reason


def _of_check(check: GateCheck, items: int) -> str | None:
    if check.status is GateStatus.PASSED:
        return None
    needed = check.items_needed
    return f"{check.measure} needs {needed} items, and the run has {items}" if needed else check.message


def _of_loss(loss: Loss, items: int) -> str | None:
    """Return why a comparison cannot pass, or passes for a better adapter only."""
    is_alike = loss.old == loss.new
    if not is_alike and compare(loss.old, loss.new, loss.margin).status is not Status.PASSED:
        asked = (
            f"a loss of {loss.margin:.3g} is not excluded"
            if loss.margin > 0
            else f"a gain of {-loss.margin:.3g} is not shown"
        )
        return f"{loss.measure}: {asked}, even if the adapter is right and the incumbent wrong on all {items} items"
    if loss.margin <= 0 or items >= ENOUGH_ITEMS:
        return None
    alike = compare(loss.new, loss.new, loss.margin)
    if alike.status is Status.PASSED:
        return None
    needed = f"; about {alike.items_needed} are needed" if alike.items_needed else ""
    return f"{loss.measure}: {items} items do not exclude a loss of {loss.margin:.3g}, even if both models answer alike{needed}"


def _best_evidence(
    row: str, gate: RunGate, policy: GatePolicy, facts: RunFacts, items: int, *, compares: bool
) -> Evidence:
    """Return the best evidence that a run can give for one of its gates."""
    incumbent = INCUMBENT if compares else None
    runs = {}
    if gate.run is not None:
        template, context = policy.runs[gate.run], row.partition(".")[2]
        pairs = _best_pairs(questions_of(gate, policy), template, facts, context, items)
        if isinstance(gate, CollateralDamage):
            # Its margin is a share of the incumbent's score, so that is at its best, too.
            pairs = [pair.model_copy(update={"incumbent": pair.candidate}) for pair in pairs[:1]] * len(pairs)
        runs[gate.run] = RunScores(
            eval_id=template.eval,
            run_id="",
            measured_at=BEFORE,
            candidate=CANDIDATE.id,
            incumbent=incumbent and incumbent.id,
            pairs=tuple(pairs),
        )
    return Evidence(
        adapter=CANDIDATE,
        incumbent=incumbent,
        compared_with=incumbent and incumbent.id,
        serving_base=None,
        judged_at=BEFORE,
        runs=runs,
    )


def _best_pairs(
    questions: Sequence[Question], template: RunTemplate, facts: RunFacts, context: str, items: int
) -> list[AnswerPair]:
    best, worst = {}, {}
    for question in questions:
        if question.criterion is not None and (facts.criteria is None or question.criterion in facts.criteria):
            best[question.criterion], worst[question.criterion] = question.best, 1.0 - question.best
    candidate = ScoredAnswer(scores=best, passed=True)
    incumbent = ScoredAnswer(scores=worst, passed=False)
    pair = AnswerPair(
        item_index=0,
        context=context,
        candidate=(candidate,) * template.samples,
        incumbent=(incumbent,) * template.samples,
    )
    return [pair] * items

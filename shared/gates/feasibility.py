"""Gates that cannot pass, named before anything is trained: the best possible evidence is judged by the policy itself.

Only what is known beforehand counts: the items of a run, the criteria of its eval, and what a job's preflight says of
its training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from shared.counted_nouns import counted
from shared.gate_outcome import GateStatus
from shared.gates.evaluate import judge_together
from shared.gates.evidence import (
    AdapterRef,
    AnswerPair,
    Evidence,
    ForgetEvidence,
    RunScores,
    ScoredAnswer,
    TrainingReport,
)
from shared.gates.forget_gates import GENERAL, forget_conditions
from shared.gates.measures import Loss
from shared.gates.policy import (
    CollateralDamage,
    ContextGate,
    ForgetGate,
    Gate,
    GatePolicy,
    RunGate,
    RunTemplate,
    Throughput,
)
from shared.gates.receipt import GateCheck
from shared.gates.run_gates import Question, questions_of, run_conditions
from shared.gates.training_gates import training_check
from shared.model_card.general_questions import all_general_questions
from shared.statistics.paired import CONFIDENCE

ENOUGH_ITEMS = 250
"""Number of items with which every usual margin can be shown; more items make no difference here."""
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
    parents_items: Mapping[str, int | None] | None = None,
) -> Iterator[Hopeless]:
    """Yield every gate that no adapter can pass, and every comparison that a merely equal adapter cannot pass.

    Args:
        policy: its gates and runs.
        facts: facts about each run, by the policy's name for it; a missing run is not judged.
        training: what a job's preflight says of its training; None: not known.
        is_imported: whether the adapter was not trained here, so that no report of its training exists.
        compares: whether the alias has an incumbent, or the base is one.
        parents_items: number of items of the runs by which the parent was judged, by their names; None: not known.
    """
    gates = {row: gate for row, gate in policy.gates.configured() if gate.applies}
    conditions: dict[str, Sequence[GateCheck | Loss]] = {
        row: _best_conditions(row, gate, policy, facts.get(gate.run or "", RunFacts()), compares=compares)
        for row, gate in gates.items()
        if isinstance(gate, RunGate) and (gate.run is None or gate.run in facts)
    }
    conditions |= {
        row: _unforgotten(gate, parents_items or {}) for row, gate in gates.items() if isinstance(gate, ForgetGate)
    }
    judged = _judged(gates, conditions)
    for row, gate in gates.items():
        if isinstance(gate, RunGate | ForgetGate):
            of_row = conditions.get(row, ())
            # A gate that asks for wins passes only a better adapter, so an equal one need not pass the rest of it.
            losses = [condition for condition in of_row if isinstance(condition, Loss)]
            wants_better = any(loss.least_wins is not None for loss in losses)
            by_condition = (
                _of_loss(condition, judged, wants_better=wants_better)
                if isinstance(condition, Loss)
                else _of_check(condition)
                for condition in of_row
            )
            reasons = [reason for reason in by_condition if reason]
        else:
            reasons = _of_training(gate, training, is_imported=is_imported)
        if reasons:
            yield Hopeless(row, gate, "; ".join(dict.fromkeys(reasons)))


def _of_training(gate: Gate, training: TrainingReport | None, *, is_imported: bool) -> list[str]:
    if (training is None and not is_imported) or (isinstance(gate, Throughput) and training):
        return []
    check = training_check(gate, training)
    if check is None or check.status is GateStatus.PASSED:
        return []
    return ["an imported adapter has no record of its training" if is_imported else check.message]


@dataclass(frozen=True, slots=True)
class _Judged:
    """Outcomes of the comparisons, by their ``id()``.

    Attributes:
        at_best: comparisons of adapters that win on every item.
        alike: comparisons of adapters that answer exactly as their incumbents do; only comparisons that must exclude a
            loss with few items.
    """

    at_best: Mapping[int, GateCheck]
    alike: Mapping[int, GateCheck]


def _best_conditions(
    row: str, gate: RunGate, policy: GatePolicy, facts: RunFacts, *, compares: bool
) -> Sequence[GateCheck | Loss]:
    """Return the checks and comparisons of a gate, with the best evidence that its run can give."""
    item_count = facts.contexts.get(row.partition(".")[2], 0) if isinstance(gate, ContextGate) else facts.items
    enough = max(gate.min_items, ENOUGH_ITEMS)
    items = enough if facts.items is None else min(item_count or 0, enough)
    return run_conditions(row, gate, policy, _best_evidence(row, gate, policy, facts, items, compares=compares))


def _unforgotten(gate: ForgetGate, parents_items: Mapping[str, int | None]) -> Sequence[GateCheck | Loss]:
    """Return a gate's comparisons for the case that both models answer everything correctly."""
    right = (ScoredAnswer(passed=True),)
    pair = AnswerPair(item_index=0, candidate=right, incumbent=right)
    counts: dict[str, int | None] = {GENERAL: len(all_general_questions()), **parents_items}
    runs = {
        name: RunScores(
            eval_id="",
            run_id="",
            measured_at=BEFORE,
            candidate=CANDIDATE.id,
            incumbent=INCUMBENT.id,
            pairs=(pair,) * (ENOUGH_ITEMS if count is None else min(count, ENOUGH_ITEMS)),
        )
        for name, count in counts.items()
    }
    evidence = Evidence(
        adapter=CANDIDATE,
        incumbent=None,
        compared_with=None,
        serving_base=None,
        judged_at=BEFORE,
        forget=ForgetEvidence(compared_with=INCUMBENT.id, runs=runs),
    )
    return forget_conditions(gate, evidence)


def _judged(gates: Mapping[str, Gate], conditions: Mapping[str, Sequence[GateCheck | Loss]]) -> _Judged:
    """Judge the comparisons as a receipt does: those of blocking gates share one error level, others are judged by gate."""
    losses = {
        row: [condition for condition in of_row if isinstance(condition, Loss)] for row, of_row in conditions.items()
    }
    families = [[loss for row, gate_losses in losses.items() if gates[row].block for loss in gate_losses]]
    families += [gate_losses for row, gate_losses in losses.items() if not gates[row].block]
    at_best, alike = dict[int, GateCheck](), dict[int, GateCheck]()
    for family in families:
        at_best |= judge_together(family, 1 - CONFIDENCE)
        # Comparisons with enough items pass at any error level of the rest, so they take no part of it.
        equals = [replace(loss, old=loss.new) for loss in family if _is_narrow(loss)]
        checks = judge_together(equals, 1 - CONFIDENCE)
        narrow = [loss for loss in family if _is_narrow(loss)]
        alike |= {id(loss): checks[id(equal)] for loss, equal in zip(narrow, equals, strict=True)}
    return _Judged(at_best, alike)


def _is_narrow(loss: Loss) -> bool:
    return loss.margin > 0 and len(loss.new) < ENOUGH_ITEMS


def _of_check(check: GateCheck) -> str | None:
    if check.status is GateStatus.PASSED:
        return None
    needed = check.items_needed
    return f"{check.measure} needs {counted(needed, 'item')}, and the run has {check.n}" if needed else check.message


def _of_loss(loss: Loss, judged: _Judged, *, wants_better: bool) -> str | None:
    """Return why a comparison cannot pass, or passes only for a better adapter.

    Args:
        wants_better: whether the gate passes only better adapters anyway.
    """
    items, is_alike = len(loss.new), loss.old == loss.new
    if not is_alike and judged.at_best[id(loss)].status is not GateStatus.PASSED:
        return (
            f"{loss.measure}: {_shortfall(loss)}, even if the adapter is right and the incumbent wrong on all "
            f"{counted(items, 'item')}"
        )
    alike = judged.alike.get(id(loss))
    if wants_better or alike is None or alike.status is GateStatus.PASSED:
        return None
    needed = f"; about {alike.items_needed} are needed" if alike.items_needed else ""
    share = 1 - (alike.confidence or CONFIDENCE)
    shared = f" (its share of the error level is {share:.3g})" if share < 1 - CONFIDENCE else ""
    return (
        f"{loss.measure}: {counted(items, 'item does', 'items do')} not exclude a loss of {loss.margin:.3g}, even if "
        f"both models answer alike{needed}{shared}"
    )


def _shortfall(loss: Loss) -> str:
    if loss.least_wins is not None:
        return f"the interval would not lie above {loss.least_wins:.3g}"
    if loss.margin > 0:
        return f"a loss of {loss.margin:.3g} is not excluded"
    return f"a gain of {-loss.margin:.3g} is not shown"


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
            # The margin is a share of the incumbent's score, so the incumbent's score is at its best too.
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

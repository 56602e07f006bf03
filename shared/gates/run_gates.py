"""Gates that read a run: the checks that each makes of the candidate's answers, and of the incumbent's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shared.gates.evidence import AnswerPair, Evidence, RunScores
from shared.gates.measures import (
    Loss,
    Measure,
    loss_of,
    missing,
    pass_at,
    rate_against,
    score_of,
    share_lost,
    unusable,
    wins_of,
    without,
)
from shared.gates.policy import (
    AntiStub,
    CollateralDamage,
    ContextGate,
    EvalGate,
    EvalLocal,
    GatePolicy,
    McpToolSchema,
    PassAtK,
    ReviewRecurrence,
    RunGate,
)
from shared.gates.receipt import GateCheck
from shared.statistics.multiple import spent_alpha
from shared.statistics.paired import CONFIDENCE

Relation = Literal["at_least", "at_most", "loss_at_most", "wins_above"]


@dataclass(frozen=True)
class Question:
    """One bound that a gate puts on a run.

    Attributes:
        of_item: computes an item's number from a model's answers to it.
        criterion: the criterion that the gate reads; None: whether all pass.
        best: score of an answer, 0 or 1, with which the candidate is at its best.
    """

    measure: str
    relation: Relation
    bound: float
    of_item: Measure
    criterion: str | None
    best: float = 1.0

    @property
    def compares(self) -> bool:
        """True if it is about both models' answers."""
        return self.relation in ("loss_at_most", "wins_above")


def run_conditions(row: str, gate: RunGate, policy: GatePolicy, evidence: Evidence) -> list[GateCheck | Loss]:
    """Return the checks of a gate on a run, at least one; comparisons are judged later with those of other gates."""
    questions = questions_of(gate, policy)
    run = evidence.runs.get(gate.run or "")
    if gate.run is None or run is None:
        why = "the policy does not name a run for this gate" if gate.run is None else evidence.missing.get(gate.run)
        return _all_missing(questions, why or f"the run {gate.run} was not executed")
    if evidence.incumbent is None and policy.without_incumbent == "not_applicable":
        questions = [question for question in questions if not question.compares]
    if reason := _unusable(gate, run, policy, questions):
        return _all_missing(questions, reason)
    context = row.partition(".")[2] if isinstance(gate, ContextGate) else None
    pairs = [pair for pair in run.pairs if context is None or pair.context == context]
    # The first time, the number itself is judged; a repetition that draws new answers may pass by chance.
    alpha = spent_alpha(1 - CONFIDENCE, evidence.attempt) if evidence.attempt > 1 else None
    return [_condition(question, pairs, gate, alpha) for question in questions]


def _condition(question: Question, pairs: Sequence[AnswerPair], gate: RunGate, alpha: float | None) -> GateCheck | Loss:
    if question.compares and not pairs:
        return missing(question.measure, question.relation, question.bound, "the run has no items")
    if question.relation == "wins_above":
        return wins_of(question.measure, pairs, question.of_item, question.bound)
    if question.relation != "loss_at_most":
        return rate_against(
            question.measure, question.relation, pairs, question.of_item, question.bound, gate.min_items, alpha
        )
    loss = share_lost if isinstance(gate, CollateralDamage) else loss_of
    return loss(question.measure, pairs, question.of_item, question.bound)


def _unusable(gate: RunGate, run: RunScores, policy: GatePolicy, questions: Sequence[Question]) -> str | None:
    compares = any(question.compares for question in questions)
    criteria = [question.criterion for question in questions]
    if reason := unusable(run, criteria, compares=compares):
        return reason
    if not isinstance(gate, PassAtK):
        return None
    k = _k(gate, policy)
    sides = [side for pair in run.pairs for side in (pair.candidate, pair.incumbent) if side or compares]
    fewest = min((len(side) for side in sides), default=0)
    return f"pass@{k} needs {k} answers to each item, but the run has {fewest}" if fewest < k else None


def _all_missing(questions: Sequence[Question], reason: str) -> list[GateCheck | Loss]:
    return [missing(question.measure, question.relation, question.bound, reason) for question in questions]


def _k(gate: PassAtK, policy: GatePolicy) -> int:
    return gate.k or (policy.runs[gate.run].samples if gate.run else 1)


def _mean(measure: str, relation: Relation, bound: float, criterion: str | None) -> Question:
    best = 0.0 if relation == "at_most" else 1.0
    return Question(measure, relation, bound, score_of(criterion), criterion, best)


def questions_of(gate: RunGate, policy: GatePolicy) -> list[Question]:
    """Return the checks that a gate makes of a run, before any measurement."""
    questions: list[Question] = []
    match gate:
        case EvalLocal():
            questions = [
                _mean("parse rate", "at_least", gate.min_parse_rate, gate.parse_criterion),
                _mean("construct coverage", "at_least", gate.min_coverage_pct, gate.coverage_criterion),
            ]
        case ContextGate():
            questions = [
                _mean("parse rate", "at_least", gate.min_parse_rate, gate.parse_criterion),
                _mean("scope compliance", "at_least", gate.min_scope_compliance_rate, gate.scope_criterion),
            ]
        case PassAtK():
            questions = _pass_at_k(gate, _k(gate, policy))
        case CollateralDamage():
            questions = [_mean("mean score", "loss_at_most", gate.max_degradation, gate.criterion)]
        case McpToolSchema():
            questions = [_mean("calls that fit their schema", "at_least", gate.min, gate.criterion)]
        case AntiStub():
            questions = [
                _mean("anti-stub pass rate", "at_least", gate.min_pass_rate, gate.honest_criterion),
                _mean("placeholder rate", "at_most", gate.max_placeholder_rate, gate.placeholder_criterion),
                _mean("trivial rate", "at_most", gate.max_trivial_rate, gate.trivial_criterion),
                _mean("construct richness", "at_least", gate.min_richness, gate.richness_criterion),
            ]
        case ReviewRecurrence():
            repeated = gate.repeated_criterion
            fewer = Question(
                "answers without a repeated finding", "loss_at_most", -gate.min_delta, without(repeated), repeated, 0.0
            )
            questions = [
                _mean("repeated findings", "at_most", gate.max_repeated_rate, repeated),
                _mean("findings after a fix", "at_most", gate.max_post_regression_rate, gate.post_regression_criterion),
                fewer,
            ]
        case EvalGate():
            bounds: list[tuple[Relation, float | None]] = [
                ("at_least", gate.min_score),
                ("loss_at_most", gate.max_loss),
                ("wins_above", gate.min_win_rate),
            ]
            questions = [
                _mean("win rate" if how == "wins_above" else "mean score", how, bound, gate.criterion)
                for how, bound in bounds
                if bound is not None
            ]
    if not questions:
        raise TypeError(f"{type(gate).__name__} does not evaluate runs")
    return questions


def _pass_at_k(gate: PassAtK, k: int) -> list[Question]:
    bounds = {1: gate.min_pass_at_1} | {k: gate.min_pass_at_k}
    if k == 1:
        bounds = {1: max(gate.min_pass_at_1, gate.min_pass_at_k)}
    checks: list[tuple[int, Relation, float]] = [(tries, "at_least", bound) for tries, bound in bounds.items()]
    checks += [(tries, "loss_at_most", gate.max_regression_drop) for tries in bounds]
    return [
        Question(f"pass@{tries}", relation, bound, pass_at(tries, gate.criterion), gate.criterion)
        for tries, relation, bound in checks
    ]

"""Results of a run: counts as its items arrive, and the comparison of its two models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from shared.evaluation.plan import EvaluationPlan
from shared.evaluation.types import Answer, Criterion, CriterionResult, ItemResult
from shared.graders.types import ScoreModel
from shared.sandbox.levels import Level
from shared.statistics.paired import Comparison, compare, noise_floor, within_bounds
from shared.statistics.wins import WinRate, win_rate

USAGE_FIELDS = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")


class ModelTotals(BaseModel):
    """Requests to a model so far, and their tokens."""

    invocation_count: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0


class CriterionTotals(BaseModel):
    """Answers that a criterion has judged so far; one that it could not judge neither passed nor failed."""

    passed: int = 0
    failed: int = 0
    errored: int = 0
    score_sum: float = 0.0


class Totals(BaseModel):
    """Counts of a run so far. They are stored together with the items that they count.

    Attributes:
        incumbent_criteria: criteria of the second model.
        usage: usage by the model's name, including judging models.
        sandbox: the weakest level at which criteria ran code, in any attempt; None: none did.
        unrepeatable: for each criterion that runs code, the number of answers to the first ten items that it scored
            differently the second time.
    """

    done: int = 0
    passed: int = 0
    failed: int = 0
    errored: int = 0
    criteria: dict[str, CriterionTotals] = {}
    incumbent_criteria: dict[str, CriterionTotals] = {}
    usage: dict[str, ModelTotals] = {}
    sandbox: Level | None = None
    unrepeatable: dict[str, int] = {}

    @classmethod
    def of(cls, plan: EvaluationPlan) -> Totals:
        """Return the totals before the first item, with each criterion and model."""
        names = [criterion.name for criterion in plan.testing_criteria]
        return cls(
            criteria={name: CriterionTotals() for name in names},
            incumbent_criteria={name: CriterionTotals() for name in names} if len(plan.models) > 1 else {},
            usage={target.name: ModelTotals() for target in plan.models},
        )

    def add(self, result: ItemResult, judges: dict[str, dict[str, Any]], unrepeatable: Sequence[str] = ()) -> None:
        """Count an item.

        Args:
            judges: usage of the models that judged it.
            unrepeatable: criteria that run code and scored differently the second time, once for each answer.
        """
        for name in unrepeatable:
            self.unrepeatable[name] = self.unrepeatable.get(name, 0) + 1
        self.done += 1
        self.passed += result.status == "pass"
        self.failed += result.status == "fail"
        self.errored += result.status == "error"
        _count(self.criteria, result.answer.results)
        self._use(result.answer)
        if result.incumbent:
            _count(self.incumbent_criteria, result.incumbent.results)
            self._use(result.incumbent)
        if result.repeated:
            self._use(result.repeated)
        for model, usage in judges.items():
            self._add_usage(model, usage, int(usage.get("requests", 1)))

    def _use(self, answer: Answer) -> None:
        if answer.model and answer.usage:
            self._add_usage(answer.model, answer.usage, 1)

    def _add_usage(self, model: str, usage: dict[str, Any], requests: int) -> None:
        total = self.usage.setdefault(model, ModelTotals())
        total.invocation_count += requests
        for name in USAGE_FIELDS:
            setattr(total, name, getattr(total, name) + int(usage.get(name) or 0))


@dataclass(frozen=True, slots=True)
class PairedScores:
    """A criterion's scores of both models on the items that both have answered, in the same order.

    Attributes:
        groups: index of each pair's item: the answers to one item are a group.
        unpaired: items without a score of one model; they are in no comparison.
        repeated: the incumbent's scores of its second answers, if the run has them.
    """

    criterion: str
    incumbent: list[float]
    candidate: list[float]
    groups: list[int]
    unpaired: int
    repeated: list[float] = field(default_factory=list)

    @property
    def noise_floor(self) -> float | None:
        """Mean absolute difference, per answer, between the incumbent's first and second scores. None: it answered
        once.
        """
        return noise_floor(self.incumbent, self.repeated)

    @property
    def win_rate(self) -> WinRate:
        """Comparison by wins: the share of items on which the candidate's score is higher than the incumbent's."""
        return win_rate(self.incumbent, self.candidate, groups=self.groups)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of a run.

    Attributes:
        pairs: pairs by the criterion's name; empty for a run of one model.
    """

    run_id: str
    totals: Totals
    pairs: dict[str, PairedScores]
    comparisons: dict[str, Comparison]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, as in a job's result."""
        compared = {name: asdict(comparison) for name, comparison in self.comparisons.items()}
        for name, comparison in compared.items():
            comparison["unpaired"] = self.pairs[name].unpaired
            comparison["noise_floor"] = self.pairs[name].noise_floor
            comparison["win_rate"] = asdict(self.pairs[name].win_rate)
        facts = {"sandbox": self.totals.sandbox, "unrepeatable": self.totals.unrepeatable}
        return {"totals": self.totals.model_dump(mode="json"), "comparisons": compared, **facts}


def outcome_of(run_id: str, plan: EvaluationPlan, totals: Totals, results: Iterable[ItemResult]) -> RunOutcome:
    """Compute the outcome of a run from all of its items."""
    pairs = {
        criterion.name: PairedScores(criterion.name, [], [], [], 0)
        for criterion in plan.testing_criteria
        if len(plan.models) > 1
    }
    unpaired = dict.fromkeys(pairs, 0)
    for result in results:
        for number, criterion in enumerate(plan.testing_criteria if pairs else ()):
            both = _scores(criterion, number, result)
            if both is None:
                unpaired[criterion.name] += 1
            else:
                pair = pairs[criterion.name]
                pair.incumbent.append(both[0])
                pair.candidate.append(both[1])
                pair.groups.append(result.item_index)
                pair.repeated.extend(both[2:])
    counted = {name: replace(pair, unpaired=unpaired[name]) for name, pair in pairs.items()}
    comparisons = {
        name: compare(*within_bounds(pair.incumbent, pair.candidate), plan.margin, groups=pair.groups)
        for name, pair in counted.items()
    }
    return RunOutcome(run_id, totals, counted, comparisons)


def _scores(criterion: Criterion, number: int, result: ItemResult) -> tuple[float, ...] | None:
    """Return the scores of incumbent and candidate, and the incumbent's second one if any, scaled to 0..1; None if one
    is missing.
    """
    answers = [result.incumbent, result.answer, *filter(None, [result.repeated])]
    scores = [answer.results[number] for answer in answers if answer and len(answer.results) > number]
    if len(scores) < len(answers) or any(score.error for score in scores):
        return None
    low, high = criterion.range if isinstance(criterion, ScoreModel) else (0.0, 1.0)
    return tuple((score.score - low) / (high - low) for score in scores)


def _count(totals: dict[str, CriterionTotals], results: Sequence[CriterionResult]) -> None:
    for result in results:
        total = totals.setdefault(result.name, CriterionTotals())
        total.errored += result.error is not None
        total.passed += result.error is None and result.passed
        total.failed += result.error is None and not result.passed
        total.score_sum += result.score

"""One item: the models' answers to it, and the criteria's verdicts on the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.checkers.contained import ContainedCheckers
from shared.errors import InvalidRequest, MensError, NotFound, Unavailable
from shared.evaluation.criteria import OTHER
from shared.evaluation.plan import EvaluationPlan, ModelTarget
from shared.evaluation.prompts import ROUTES, messages_of, read_response, request_of, seed_of
from shared.evaluation.types import Answer, Criterion, CriterionResult, ItemResult, SourceItem
from shared.graders.grading import OF_THE_ANSWER, grade, has_code, is_passed, make_sample
from shared.graders.model_graders import Ask
from shared.graders.remote_models import RemoteModels
from shared.sandbox.client import Sandbox

Post = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Sends a request to a route and returns the response's object; raises a MensError without a valid response."""
OF_THE_WHOLE = (Unavailable, NotFound)
"""Errors that do not depend on the item: the next item would meet them too."""
REPEATED = 10
"""Number of items, from the first, whose code scores are computed twice, to detect code that is not deterministic."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Resources that criteria need besides the served models: contained checkers, a sandbox for code, and models of
    other servers.
    """

    checkers: ContainedCheckers
    remote: RemoteModels
    sandbox: Sandbox | None = None


@dataclass(slots=True)
class Judged:
    """Outcome of judging an item.

    Attributes:
        judges: token usage of the models that judged it, by model name.
        unrepeatable: names of code criteria whose second score of an answer differs from the first, one entry per
            answer.
    """

    result: ItemResult
    judges: dict[str, dict[str, Any]] = field(default_factory=dict)
    unrepeatable: list[str] = field(default_factory=list)


def judge_item(
    plan: EvaluationPlan,
    post: Post,
    tools: Tools,
    item_index: int,
    sample_index: int,
    source: SourceItem,
) -> Judged:
    """Send an item to the plan's models and judge their answers.

    Args:
        plan: the run's plan.
        post: sends requests to models.
        tools: resources that criteria need.
        item_index: index of the item, from 0.
        sample_index: index of the answer to it.
        source: the item.

    Raises:
        Unavailable, NotFound: failures that every other item would meet too.
    """
    judges: dict[str, dict[str, Any]] = {}
    unrepeatable: list[str] = []

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        is_remote = question["model"] in tools.remote
        completion = tools.remote.complete(question) if is_remote else post(ROUTES["chat"], question)
        _add_usage(judges.setdefault(question["model"], {}), completion.get("usage") or {})
        return completion

    def judged(answer: Answer, other: Answer | None) -> Answer:
        if answer.sample is None:
            return answer
        # Each answer is judged once as the first of the two, so a judge that favours a position makes ties, not wins.
        sample = answer.sample | ({OTHER: other.sample} if other and other.sample is not None else {})
        results = [
            _result(criterion, source.item, sample, ask, tools, unrepeatable if item_index < REPEATED else None)
            for criterion in plan.testing_criteria
        ]
        return answer.model_copy(update={"results": results})

    targets = [*plan.models, plan.models[1]] if plan.noise_floor else plan.models
    answers = [_answer(plan, target, post, source.item, sample_index) for target in targets]
    if not answers:
        answers = [_answer_of_row(source)]
    against = [answers[1], *[answers[0]] * (len(answers) - 1)] if len(answers) > 1 else [None]
    first, *others = map(judged, answers, against)
    result = ItemResult(
        item_index=item_index,
        sample_index=sample_index,
        item=source.item,
        answer=first,
        incumbent=others[0] if others else None,
        repeated=others[1] if len(others) > 1 else None,
    )
    return Judged(result, judges, unrepeatable)


def _answer(
    plan: EvaluationPlan, target: ModelTarget, post: Post, item: Mapping[str, Any], sample_index: int
) -> Answer:
    """Return a model's answer; an error that concerns only this item is part of it."""
    assert plan.endpoint and plan.input_messages
    seed = seed_of(plan, sample_index)
    messages: list[dict[str, Any]] = []
    try:
        messages = messages_of(plan.input_messages, item)
        body = request_of(plan, target, messages, sample_index)
        completion = read_response(plan.endpoint, post(ROUTES[plan.endpoint], body))
    except OF_THE_WHOLE:
        raise
    except MensError as error:
        return Answer(model=target.name, input=messages, seed=seed, error=error.as_dict())
    return Answer(
        model=target.name,
        input=messages,
        sample=completion.sample,
        finish_reason=completion.finish_reason,
        usage=completion.usage,
        seed=seed,
    )


def _answer_of_row(source: SourceItem) -> Answer:
    """Return the answer that a row contains; a row without one is judged by the item alone."""
    sample = dict(source.sample or {})
    if isinstance(text := sample.get("output_text"), str) and "output_json" not in sample:
        sample = {**make_sample(text), **sample}
    return Answer(sample=sample)


def _result(
    criterion: Criterion,
    item: Mapping[str, Any],
    sample: Mapping[str, Any],
    ask: Ask,
    tools: Tools,
    unrepeatable: list[str] | None,
) -> CriterionResult:
    """Return a criterion's result for an answer. If a list is given, code runs twice, and the criterion's name is
    appended if the scores differ.
    """
    try:
        score = grade(criterion, item, sample, ask, tools.checkers, tools.sandbox, tools.remote.embed).score
        if unrepeatable is not None and has_code(criterion):
            again = grade(criterion, item, sample, ask, tools.checkers, tools.sandbox).score
            unrepeatable += [criterion.name] if again != score else []
    except OF_THE_WHOLE:
        raise
    except MensError as error:
        failure = error.as_dict()
        is_answers = isinstance(error, InvalidRequest) and error.code in OF_THE_ANSWER
        return CriterionResult(
            name=criterion.name,
            type=criterion.type,
            passed=False,
            score=0.0,
            fault=failure if is_answers else None,
            error=None if is_answers else failure,
        )
    return CriterionResult(name=criterion.name, type=criterion.type, passed=is_passed(criterion, score), score=score)


def _add_usage(total: dict[str, Any], usage: Mapping[str, Any]) -> None:
    total["requests"] = total.get("requests", 0) + 1
    details = usage.get("prompt_tokens_details") or {}
    counted = {**usage, "cached_tokens": details.get("cached_tokens") or 0}
    for name in ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"):
        total[name] = total.get(name, 0) + int(counted.get(name) or 0)

"""Upper bound of a recipe's requests to models, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.claims import claimed
from corpus.generation.columns import GenerationRecipe
from corpus.generation.endpoints import ModelEndpoint
from corpus.generation.methods.method import JUDGE_TOKENS
from corpus.generation.model_columns import ModelColumn
from corpus.generation.responses import ResponseStore
from corpus.generation.samplers import Sampler
from shared.errors import MensError
from shared.graders.model_graders import judging_models
from shared.graders.templates import render

SAMPLED_ROWS = 20
CHARACTERS_PER_TOKEN = 4


@dataclass(slots=True)
class PlannedRequests:
    """Planned requests to a model.

    Attributes:
        requests: largest number of requests; fewer are sent if rows are dropped early or responses are already stored.
        prompt_tokens: estimate, at four characters per token.
        answer_tokens: upper bound.
        money: estimate, with the longest answers; None without prices.
        stored: number of this model's responses in the folder.
    """

    endpoint: ModelEndpoint
    requests: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    money: float | None = None
    stored: int = 0


def plan_requests(
    recipe: GenerationRecipe,
    endpoints: Mapping[str, ModelEndpoint],
    samplers: Mapping[str, Sampler],
    rows: int,
    store: Path,
) -> list[PlannedRequests]:
    """Return the planned requests to each model. In later prompts, a value that a model writes counts with half of its
    largest number of tokens.
    """
    planned = {name: PlannedRequests(endpoint) for name, endpoint in endpoints.items()}
    sampled = min(SAMPLED_ROWS, rows)
    for number in range(sampled):
        values: dict[str, Any] = {}
        for column in recipe.columns:
            if not isinstance(column, ModelColumn):
                values[column.name] = samplers[column.name](number, values)
                continue
            _add(planned, column, values)
            values[column.name] = column.stand_in("x" * (column.max_tokens * CHARACTERS_PER_TOKEN // 2))
    for name, plan in planned.items():
        for field in ("requests", "prompt_tokens", "answer_tokens"):
            setattr(plan, field, getattr(plan, field) * rows // sampled)
        if price := recipe.prices.get(name):
            plan.money = price.cost(plan.prompt_tokens, plan.answer_tokens)
    if store.is_dir():
        with claimed(store.parent, is_folder=True), ResponseStore(store) as responses:
            for response in responses:
                if response.name in planned:
                    planned[response.name].stored += 1
    return [*planned.values()]


def _add(planned: Mapping[str, PlannedRequests], column: ModelColumn, values: Mapping[str, Any]) -> None:
    """Add the requests for a column of one row, and those of its graders."""
    plan, requests = planned[column.model], column.requests
    plan.requests += requests
    plan.answer_tokens += requests * column.max_tokens
    plan.prompt_tokens += requests * (_characters(column, values) // CHARACTERS_PER_TOKEN + 1)
    for name in (name for grader in column.graders for name in judging_models(grader)):
        planned[name].requests += requests
        planned[name].answer_tokens += requests * JUDGE_TOKENS
        planned[name].prompt_tokens += requests * column.max_tokens // 2


def _characters(column: ModelColumn, values: Mapping[str, Any]) -> int:
    total = 0
    for template in column.templates.values():
        try:
            total += len(render(template, values, {}))
        except MensError:
            # A key of a value that is an object, which is not known yet.
            total += len(template)
    return total

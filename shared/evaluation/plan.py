"""Complete plan of a run: items, models, prompts, sampling, criteria. It is stored with the run and does not change."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from shared.evaluation.criteria import check_compares
from shared.evaluation.types import (
    CompletionsSource,
    Criterion,
    EvalSpec,
    InputMessages,
    JsonlSource,
    ResponsesSource,
    RunSpec,
)
from shared.graders.pass_at_k import check_sampling
from shared.graders.types import GraderValue
from shared.hashing import digest_json

Endpoint = Literal["chat", "responses"]


class ModelTarget(GraderValue):
    """A model that answers the items.

    Attributes:
        name: name in the run.
        served: name to send in requests: for an alias, the adapter that it had when the run was created, so that one
            model gives all answers.
    """

    name: str
    served: str


class PlannedItems(GraderValue):
    """Location of the items: a file in the storage with one ``{"item": …, "sample": …}`` per line.

    Attributes:
        inline: whether the file was made from items in the request.
    """

    file_id: str
    sha256: str
    count: int
    inline: bool = False


class EvaluationPlan(GraderValue):
    """Plan of a run.

    Attributes:
        models: models that answer: none if the rows have their own answers, otherwise one, and the incumbent for a
            comparison.
        sampling: fields of each request except the model, the messages and the seed.
        seed: seed of the first answer to each item; further answers count up from it.
        samples: number of answers to each item.
        margin: accepted loss of the first model against the second.
        noise_floor: whether the second model answers twice.
        data_source: the run's, as requested, without the rows.
    """

    eval_id: str
    testing_criteria: list[Criterion]
    items: PlannedItems
    endpoint: Endpoint | None = None
    input_messages: InputMessages | None = None
    models: list[ModelTarget] = Field([], max_length=2)
    sampling: dict[str, Any] = {}
    seed: int = 0
    samples: int = 1
    margin: float = 0.0
    noise_floor: bool = False
    data_source: dict[str, Any] = {}

    @property
    def answers(self) -> int:
        """Number of the run's output items: one for each answer to each item."""
        return self.items.count * self.samples

    @property
    def digest(self) -> str:
        """Digest of everything that affects the results."""
        return digest_json(self.model_dump(mode="json"))


def plan_run(
    eval_id: str, spec: EvalSpec, run: RunSpec, items: PlannedItems, models: list[ModelTarget], seed: int
) -> EvaluationPlan:
    """Make the plan of a run whose parts were checked (`shared/evaluation/items.py`, `criteria.py`).

    Args:
        seed: seed for a run that names none.
    """
    source = run.data_source
    wire = source.model_dump(mode="json", exclude_none=True)
    wire["source"] = {"type": "file_id", "id": items.file_id}
    plan = EvaluationPlan(
        eval_id=eval_id,
        testing_criteria=spec.testing_criteria,
        items=items,
        models=models,
        seed=seed,
        margin=run.mens.margin,
        data_source=wire,
    )
    if isinstance(source, JsonlSource):
        return plan
    check_compares(spec.testing_criteria, len(models))
    for criterion in spec.testing_criteria:
        # Each sampled answer is judged on its own.
        check_sampling(criterion, 1, source.sampling_params.temperature if source.sampling_params else None)
    own_seed = source.sampling_params.seed if source.sampling_params else None
    return plan.model_copy(
        update={
            "endpoint": "chat" if isinstance(source, CompletionsSource) else "responses",
            "input_messages": source.input_messages,
            "sampling": _fields(source),
            "seed": seed if own_seed is None else own_seed,
            "samples": run.mens.samples,
            "noise_floor": run.mens.noise_floor and len(models) > 1,
        }
    )


def _fields(source: CompletionsSource | ResponsesSource) -> dict[str, Any]:
    """Return the sampling parameters as fields of a request. Missing ones are sent explicitly as OpenAI's defaults."""
    parameters = source.sampling_params.model_dump(exclude_none=True) if source.sampling_params else {}
    parameters.pop("seed", None)
    fields = {"temperature": 1.0, "top_p": 1.0, **parameters}
    if isinstance(source, ResponsesSource):
        if "max_completion_tokens" in fields:
            fields["max_output_tokens"] = fields.pop("max_completion_tokens")
        if "reasoning_effort" in fields:
            fields["reasoning"] = {"effort": fields.pop("reasoning_effort")}
    return fields

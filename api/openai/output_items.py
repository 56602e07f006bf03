"""OpenAI's output items: the outcome of each item of a run, in its shape."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, Field

from api.openai.types import EvalApiError, unix_seconds
from shared.database.evaluation.items import StoredItem
from shared.database.evaluation.runs import EvalRun
from shared.errors import Code, NotFound
from shared.evaluation.plan import EvaluationPlan
from shared.evaluation.types import Answer, ItemResult


class SampleUsage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0


class OutputSample(BaseModel):
    input: list[dict[str, str]]
    output: list[dict[str, Any]]
    finish_reason: str
    model: str
    max_completion_tokens: int = Field(description="0: the run sets no bound.")
    seed: int
    temperature: float
    top_p: float
    usage: SampleUsage
    error: EvalApiError | None


class OutputItem(BaseModel):
    id: str
    object: Literal["eval.run.output_item"] = "eval.run.output_item"
    created_at: int
    eval_id: str
    run_id: str
    datasource_item: dict[str, Any]
    datasource_item_id: int
    status: str
    results: list[dict[str, Any]]
    sample: OutputSample
    mens: dict[str, Any]


def item_view(run: EvalRun, stored: StoredItem) -> OutputItem:
    """Return an output item in OpenAI's shape."""
    plan, result = EvaluationPlan.model_validate(run.plan), ItemResult.model_validate(stored.result)
    facts: dict[str, Any] = {"sample_index": result.sample_index, "error": result.answer.error}
    if result.incumbent:
        facts["incumbent"] = {
            "status": result.incumbent.status,
            "results": _results(result.incumbent, plan),
            "sample": _sample(result.incumbent, plan).model_dump(),
        }
    return OutputItem(
        id=f"{run.id}-{stored.position}",
        created_at=unix_seconds(stored.created_at),
        eval_id=run.eval_id,
        run_id=run.id,
        datasource_item=result.item,
        datasource_item_id=result.item_index,
        status=result.status,
        results=_results(result.answer, plan),
        sample=_sample(result.answer, plan),
        mens=facts,
    )


def item_position(run_id: str, item_id: str) -> int:
    """Return the position in an output item's id.

    Raises:
        NotFound: ``EVAL_ITEM_NOT_FOUND``: the id does not belong to the run.
    """
    prefix, _, position = item_id.rpartition("-")
    if prefix != run_id or not re.fullmatch(r"[0-9]{1,9}", position):
        message = f"The run {run_id} has no output item with the id {item_id[:80]!r}."
        raise NotFound(
            Code.EVAL_ITEM_NOT_FOUND, message, remedy="Use an id from the list of output items.", param="output_item_id"
        )
    return int(position)


def _results(answer: Answer, plan: EvaluationPlan) -> list[dict[str, Any]]:
    """Return each criterion's result; for a missing answer, no criterion has passed."""
    if not answer.results:
        return [
            {
                "name": criterion.name,
                "type": criterion.type,
                "passed": False,
                "score": 0.0,
                "mens": {"error": answer.error},
            }
            for criterion in plan.testing_criteria
        ]
    results = []
    for result in answer.results:
        view: dict[str, Any] = {
            "name": result.name,
            "type": result.type,
            "passed": result.passed,
            "score": result.score,
        }
        if result.error or result.fault:
            view["mens"] = {"error": result.error, "fault": result.fault}
        results.append(view)
    return results


def _sample(answer: Answer, plan: EvaluationPlan) -> OutputSample:
    sampling, output = plan.sampling, []
    if answer.sample is not None:
        output.append({"role": "assistant", "content": str(answer.sample.get("output_text") or "")})
        if tool_calls := answer.sample.get("output_tools"):
            output[0]["tool_calls"] = tool_calls
    error = answer.error
    return OutputSample(
        input=[{"role": str(turn.get("role")), "content": _text(turn.get("content"))} for turn in answer.input],
        output=output,
        finish_reason=answer.finish_reason,
        model=answer.model,
        max_completion_tokens=sampling.get("max_completion_tokens", sampling.get("max_output_tokens", 0)),
        seed=answer.seed,
        temperature=sampling.get("temperature", 0.0),
        top_p=sampling.get("top_p", 1.0),
        usage=SampleUsage(**answer.usage),
        error=EvalApiError(code=error["code"], message=error["message"]) if error else None,
    )


def _text(content: Any) -> str:
    """Return a message's content as one string: its text parts, joined."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
    return "" if content is None else str(content)

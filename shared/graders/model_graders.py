"""Graders that use a model: its request, and the meaning of its answer. The caller sends the request."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shared.errors import Code, InvalidRequest
from shared.graders.checks import parse_json
from shared.graders.templates import render
from shared.graders.types import Grader, GraderMessage, LabelModel, MultiGrader, ScoreModel, TextPart

Values = Mapping[str, Any]
Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends a chat request and returns the completion; raises a MensError if the request fails."""
Embed = Callable[[list[str]], list[list[float]]]
"""Returns an embedding of each string, all of one length; raises a MensError if the request fails."""


def judge_request(grader: ScoreModel | LabelModel, item: Values, sample: Values) -> dict[str, Any]:
    """Make the chat request of a grader; its answer must conform to a JSON Schema.

    Raises:
        InvalidRequest: as :func:`message_text`.
    """
    result = {"type": "number"} if isinstance(grader, ScoreModel) else {"type": "string", "enum": grader.labels}
    sampling = grader.sampling_params.model_dump(exclude_none=True) if grader.sampling_params else {}
    if "max_completions_tokens" in sampling:
        sampling["max_completion_tokens"] = sampling.pop("max_completions_tokens")
    messages = [{"role": turn.role, "content": message_text(turn, item, sample)} for turn in grader.input]
    return {**result_request(grader.model, messages, result), **sampling}


def result_request(model: str, messages: list[dict[str, str]], result: Values) -> dict[str, Any]:
    """Make a chat request whose answer is JSON: steps of reasoning, then a ``result``.

    Args:
        result: JSON Schema of the result.
    """
    texts = {"description": {"type": "string"}, "conclusion": {"type": "string"}}
    steps = {"type": "array", "items": _closed(texts)}
    schema = {
        "name": "score" if result["type"] == "number" else "label",
        "schema": _closed({"steps": steps, "result": result}),
        "strict": True,
    }
    return {
        "model": model,
        "messages": messages,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def judging_models(grader: Grader) -> Iterator[str]:
    """Yield the models that a grader asks, also those of its parts."""
    if isinstance(grader, MultiGrader):
        for part in grader.graders.values():
            yield from judging_models(part)
    elif isinstance(grader, ScoreModel | LabelModel):
        yield grader.model


def message_text(turn: GraderMessage, item: Values, sample: Values) -> str:
    """Return a message's text, its parts joined and filled in.

    Raises:
        InvalidRequest: as :func:`shared.graders.templates.render` and :func:`check_text_alone`.
    """
    check_text_alone(turn)
    return "".join(render(template, item, sample) for template in message_templates(turn))


def message_templates(turn: GraderMessage) -> Iterator[str]:
    """Iterate over the templates of a message, one of each part."""
    yield from (part if isinstance(part, str) else part.template for part in turn.parts)


def check_text_alone(turn: GraderMessage) -> None:
    """Raise an error if a message has parts that are not text, which no model here can read.

    Raises:
        InvalidRequest: ``GRADER_UNSUPPORTED``: it has an image or a recording.
    """
    for part in turn.parts:
        if not isinstance(part, str | TextPart):
            noun = "an image" if part.type == "input_image" else "a recording"
            raise InvalidRequest(
                Code.GRADER_UNSUPPORTED,
                f"A message of the role {turn.role} has {noun}, but the models here accept only text.",
                remedy="Describe the image or recording in words.",
                param="input",
            )


def score_of(grader: ScoreModel | LabelModel, completion: Values) -> float:
    """Return the score of a completion: a number within the range, or whether the label passes.

    Raises:
        InvalidRequest: ``GRADER_MODEL_REFUSED``, ``GRADER_MODEL_ANSWER_INVALID``.
    """
    try:
        message = completion["choices"][0]["message"]
        refusal, content = message.get("refusal"), message.get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _no_result(grader, "it is not a chat completion") from None
    if refusal:
        raise InvalidRequest(Code.GRADER_MODEL_REFUSED, f"{grader.model} refused to judge: {str(refusal)[:200]}")
    try:
        result = parse_json(content)["result"]
    except (ValueError, KeyError, TypeError):
        raise _no_result(grader, "it has no `result`") from None
    if isinstance(grader, LabelModel):
        if result not in grader.labels:
            raise _no_result(grader, f"{str(result)[:100]!r} is not one of the labels")
        return float(result in grader.passing_labels)
    if isinstance(result, bool) or not isinstance(result, int | float) or not math.isfinite(result):
        raise _no_result(grader, f"{str(result)[:100]!r} is not a number")
    return float(min(max(result, grader.range[0]), grader.range[1]))


def _no_result(grader: ScoreModel | LabelModel, reason: str) -> InvalidRequest:
    message = f"The answer of {grader.model} does not contain a score: {reason}."
    remedy = "Raise max_completions_tokens, or use a model that follows JSON Schemas."
    return InvalidRequest(Code.GRADER_MODEL_ANSWER_INVALID, message, remedy=remedy, param="model")

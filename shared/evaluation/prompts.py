"""Convert an item to a request, and a response to a sample. Pure: the caller sends requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import Code, InvalidRequest, JobFailed
from shared.evaluation.plan import Endpoint, EvaluationPlan, ModelTarget
from shared.evaluation.types import InputMessages, MessageTemplate
from shared.graders.grading import make_sample
from shared.graders.model_graders import message_text
from shared.graders.templates import parse_path, value_at

ROUTES: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}


@dataclass(frozen=True, slots=True)
class Completion:
    """Content of a response.

    Attributes:
        sample: the value of ``sample`` in templates.
        usage: counts of tokens: ``prompt_tokens``, ``completion_tokens``, ``total_tokens``, ``cached_tokens``.
    """

    sample: dict[str, Any]
    finish_reason: str
    usage: dict[str, int]


def messages_of(prompt: InputMessages, item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages to send to a model for an item.

    Raises:
        InvalidRequest: ``EVAL_ITEMS_INVALID``: the item's value there is not a list of messages.
    """
    if isinstance(prompt, MessageTemplate):
        return [{"role": turn.role, "content": message_text(turn, item, {})} for turn in prompt.template]
    value = value_at(parse_path(prompt.item_reference), item, {})
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    is_chat = isinstance(value, list) and value and all(isinstance(turn, dict) and "role" in turn for turn in value)
    if not is_chat:
        raise InvalidRequest(
            Code.EVAL_ITEMS_INVALID,
            f"{prompt.item_reference} does not contain messages.",
            remedy="It must be a list of {role, content}, or a string.",
        )
    return list(value)


def request_of(
    plan: EvaluationPlan, target: ModelTarget, messages: list[dict[str, Any]], sample_index: int
) -> dict[str, Any]:
    """Return the body of a request to the plan's endpoint; the bodies for both models differ only in the name."""
    field = "messages" if plan.endpoint == "chat" else "input"
    return {**plan.sampling, "model": target.served, field: messages, "seed": seed_of(plan, sample_index)}


def seed_of(plan: EvaluationPlan, sample_index: int) -> int:
    """Return the seed of an answer to an item: the same for every item and model."""
    return (plan.seed + sample_index) % 2**31


def read_response(endpoint: Endpoint, body: Mapping[str, Any]) -> Completion:
    """Parse a response.

    Raises:
        JobFailed: ``SERVING_FAILED``: it is not a completion.
    """
    try:
        return _read_chat(body) if endpoint == "chat" else _read_responses(body)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise JobFailed(
            Code.SERVING_FAILED, "The response is not a chat completion.", remedy="Read the API's log."
        ) from None


def _read_chat(body: Mapping[str, Any]) -> Completion:
    choice = body["choices"][0]
    message = choice["message"]
    sample = make_sample(message.get("content") or "", message.get("tool_calls") or ())
    return Completion(
        sample, str(choice.get("finish_reason") or ""), _usage(body.get("usage") or {}, "prompt", "completion")
    )


def _read_responses(body: Mapping[str, Any]) -> Completion:
    texts, calls = [], []
    for output in body["output"]:
        if output["type"] == "message":
            texts += [part["text"] for part in output["content"] if part["type"] == "output_text"]
        elif output["type"] == "function_call":
            function = {"name": output["name"], "arguments": output["arguments"]}
            calls.append({"id": output.get("call_id"), "type": "function", "function": function})
    finish = {"completed": "tool_calls" if calls else "stop", "incomplete": "length"}.get(str(body.get("status")), "")
    return Completion(make_sample("".join(texts), calls), finish, _usage(body.get("usage") or {}, "input", "output"))


def _usage(usage: Mapping[str, Any], prompt: str, completion: str) -> dict[str, int]:
    prompt_tokens, answered = int(usage.get(f"{prompt}_tokens") or 0), int(usage.get(f"{completion}_tokens") or 0)
    details = usage.get(f"{prompt}_tokens_details") or {}
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": answered,
        "total_tokens": int(usage.get("total_tokens") or prompt_tokens + answered),
        "cached_tokens": int(details.get("cached_tokens") or 0),
    }

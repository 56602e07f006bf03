"""Ollama's questions as a replica is asked them: OpenAI's body, and the path that takes it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from api.ollama_types import ChatQuestion, GenerateQuestion, Message, Question

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
JsonObject = dict[str, Any]
Asked = tuple[str, JsonObject]


def ask_chat(question: ChatQuestion) -> Asked:
    """Path and body for POST /api/chat."""
    if question.only_loads:
        return _load(question)
    tools = {"tools": question.tools} if question.tools else {}
    return CHAT, {**_common(question), "messages": list(_turns(question.messages)), **tools}


def ask_generate(question: GenerateQuestion) -> Asked:
    """Path and body for POST /api/generate."""
    if question.only_loads:
        return _load(question)
    if question.raw:
        return COMPLETION, {**_common(question), "prompt": question.prompt}
    system = [{"role": "system", "content": question.system}] if question.system else []
    return CHAT, {**_common(question), "messages": [*system, {"role": "user", "content": question.prompt}]}


def _load(question: Question) -> Asked:
    """One token is made, which nobody sees: the replica has loaded the adapter then."""
    return COMPLETION, {"model": question.model, "prompt": "\n", "max_tokens": 1}


def _common(question: Question) -> JsonObject:
    body: JsonObject = {"model": question.model, "stream": question.streams}
    if question.streams:
        body["stream_options"] = {"include_usage": True}
    if question.options:
        body |= question.options.sampling()
    if question.logprobs or question.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": question.top_logprobs or 0}
    return body | _format(question) | _thinking(question)


def _format(question: Question) -> JsonObject:
    if not question.format:
        return {}
    if question.format == "json":
        return {"response_format": {"type": "json_object"}}
    schema = {"name": "format", "schema": question.format}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _thinking(question: Question) -> JsonObject:
    """In the word that chat templates know; one that does not think ignores it."""
    if question.think is None:
        return {}
    if isinstance(question.think, str):
        return {"reasoning_effort": question.think}
    return {"chat_template_kwargs": {"enable_thinking": question.think}}


def _turns(messages: Iterable[Message]) -> Iterator[JsonObject]:
    """OpenAI's turns: calls have ids, and a tool's result says which call it answers."""
    open_calls: dict[str, str] = {}
    made = 0
    for message in messages:
        turn: JsonObject = {"role": message.role, "content": message.content or ""}
        if message.tool_calls:
            turn["tool_calls"] = _calls(message, made)
            made += len(message.tool_calls)
            open_calls = {call["id"]: call["function"]["name"] for call in turn["tool_calls"]}
        elif message.role == "tool":
            turn["tool_call_id"] = _answered(message, open_calls)
        yield turn


def _calls(message: Message, made: int) -> list[JsonObject]:
    return [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {
                "name": call.function.name,
                "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
            },
        }
        for number, call in enumerate(message.tool_calls or [], made + 1)
    ]


def _answered(result: Message, open_calls: dict[str, str]) -> str:
    """The id of the call that a tool's result answers; it is open no longer."""
    named = (id_ for id_, name in open_calls.items() if name == result.tool_name)
    answered = next(named, next(iter(open_calls), "call_0"))
    open_calls.pop(answered, None)
    return answered

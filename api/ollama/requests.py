"""Translates Ollama's requests to OpenAI's: the body for a replica, and the path for it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from api.ollama.types import ChatRequest, GenerateRequest, OllamaMessage, OllamaRequest

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
JsonObject = dict[str, Any]
UpstreamCall = tuple[str, JsonObject]


def translate_chat(request: ChatRequest) -> UpstreamCall:
    """Return path and body for POST /api/chat."""
    if request.only_loads:
        return _load(request)
    tools = {"tools": request.tools} if request.tools else {}
    return CHAT, {**_common(request), "messages": list(_messages(request.messages)), **tools}


def translate_generate(request: GenerateRequest) -> UpstreamCall:
    """Return path and body for POST /api/generate."""
    if request.only_loads:
        return _load(request)
    if request.raw:
        return COMPLETION, {**_common(request), "prompt": request.prompt}
    system = [{"role": "system", "content": request.system}] if request.system else []
    return CHAT, {**_common(request), "messages": [*system, {"role": "user", "content": request.prompt}]}


def _load(request: OllamaRequest) -> UpstreamCall:
    """Return a request for one discarded token: to generate it, the replica must load the adapter."""
    return COMPLETION, {"model": request.model, "prompt": "\n", "max_tokens": 1}


def _common(request: OllamaRequest) -> JsonObject:
    body: JsonObject = {"model": request.model, "stream": request.streams}
    if request.streams:
        body["stream_options"] = {"include_usage": True}
    if request.options:
        body |= request.options.sampling()
    if request.logprobs or request.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.format == "json":
        body["response_format"] = {"type": "json_object"}
    elif request.format:
        schema = {"name": "format", "schema": request.format}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    # Both are arguments that chat templates know; a template of a model without thinking ignores them.
    if isinstance(request.think, str):
        body["reasoning_effort"] = request.think
    elif request.think is not None:
        body["chat_template_kwargs"] = {"enable_thinking": request.think}
    return body


def _messages(messages: Iterable[OllamaMessage]) -> Iterator[JsonObject]:
    """Yield OpenAI's messages, in which tool calls have ids, and a tool's result names its call."""
    open_calls: dict[str, str] = {}
    made = 0
    for message in messages:
        translated: JsonObject = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            translated["reasoning"] = message.thinking
        if message.tool_calls:
            translated["tool_calls"] = [
                {
                    "id": f"call_{number}",
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
                    },
                }
                for number, call in enumerate(message.tool_calls, made + 1)
            ]
            made += len(message.tool_calls)
            open_calls = {call["id"]: call["function"]["name"] for call in translated["tool_calls"]}
        elif message.role == "tool":
            # Take the open call with the result's name, otherwise the oldest open one, and close it.
            named = (id_ for id_, name in open_calls.items() if name == message.tool_name)
            translated["tool_call_id"] = next(named, next(iter(open_calls), "call_0"))
            open_calls.pop(translated["tool_call_id"], None)
        yield translated

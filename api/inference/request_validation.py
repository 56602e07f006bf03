"""Rejects requests that vLLM would accept although they cannot be intended, or would answer differently from what they
request. Pure.

Examples: empty `messages`, a message without content, an unknown role, an empty prompt. Each request to OpenAI's
Responses API is answered on its own: a replica would keep a stored response in its own memory indefinitely, and no
other replica would know it, so a request that needs a stored response is refused rather than answered by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from api.inference.request_fields.functions import with_tools
from api.inference.request_fields.known import check_chat_fields, check_completion_fields, check_response_fields
from api.inference.request_fields.messages import check_messages, with_refusals, with_whole_texts
from api.inference.request_fields.nested import (
    check_nested_chat_fields,
    check_nested_response_fields,
    check_stream_options,
)
from api.inference.request_fields.types import check_chat_tools
from shared.datasets.row_validation import ROLES
from shared.errors import Code, InvalidRequest

EMPTY: tuple[Any, ...] = ("", [], {})
INSTEAD_OF_CONTENT = {
    "assistant": ("tool_calls", "reasoning", "reasoning_content", "refusal"),
    "developer": ("tools",),
}
"""By role, the fields of a message that may replace its content."""
NEED_A_STORED_RESPONSE = ("previous_response_id", "conversation", "background")


def validate_chat(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a chat completion as it is sent to a replica, if its messages can be intended.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: no messages, one without content, one by a role that chats do not have, or
            tools that are not functions. ``FIELD_UNKNOWN``, ``FIELD_UNSUPPORTED``, ``RESPONSE_NOT_STORED``.
    """
    check_chat_fields(body)
    check_nested_chat_fields(body)
    check_messages(body.get("messages"))
    body = with_tools(body)
    check_chat_tools(body)
    body = with_strict_forced_calls(body)
    _refuse_empty(body, "messages")
    messages = body.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            continue  # vLLM refuses it, and reports the fault
        if role not in ROLES:
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"messages[{index}].role is {role!r}.",
                remedy=f"Make it one of {', '.join(ROLES)}.",
                param=f"messages[{index}].role",
            )
        content = message.get("content")
        # An assistant's `"content": null` is what clients send back of an answer of which no text was left, such as a
        # thought that was cut short.
        is_null_answer = role == "assistant" and content is None and "content" in message
        has_substitute = is_null_answer or any(map(message.get, INSTEAD_OF_CONTENT.get(role, ())))
        if not content and content != "" and not has_substitute:
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"messages[{index}] has no content.",
                remedy="Set it to a string, which may be empty; only an assistant's message with `tool_calls` may omit it.",
                param=f"messages[{index}].content",
            )
    return _with_translated(body, "messages", with_refusals)


def validate_completion(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a text completion unchanged, unless its prompt is empty or a field is wrong.

    A missing prompt is left for vLLM to refuse, since it also accepts a prompt as embeddings.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``, ``FIELD_UNKNOWN``, ``FIELD_UNSUPPORTED``.
    """
    check_completion_fields(body)
    check_stream_options(body)
    if not body.get("prompt_embeds"):
        _refuse_empty(body, "prompt")
    return body


def validate_response(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a Responses API request as it is sent to a replica: nothing is stored.

    Raises:
        InvalidRequest: ``RESPONSE_NOT_STORED``. ``TOOL_UNSUPPORTED``: a tool that the server itself would run.
            ``REQUEST_INVALID``: the input, or a message of it that is not the model's own, is empty. ``FIELD_UNKNOWN``,
            ``FIELD_UNSUPPORTED``.
    """
    check_response_fields(body)
    for name in NEED_A_STORED_RESPONSE:
        if body.get(name):
            raise _not_stored(name, "Send the whole conversation in `input`, and wait for the answer.")
    if body.get("store") is True:
        raise _not_stored("store", "Leave `store` out, or set it to false.")
    tools, items = body.get("tools"), body.get("input")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            raise InvalidRequest(
                Code.TOOL_UNSUPPORTED,
                f"A tool of the type {kind!r} would have to run on the server, which is not supported.",
                remedy="Describe it as a function, and run it yourself.",
                param=f"tools[{index}].type",
            )
    check_nested_response_fields(body)
    _refuse_unserved_choice(body.get("tool_choice"))
    _refuse_empty(body, "input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("content") == [] and item.get("role") not in (None, "assistant"):
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"input[{index}] has no content.",
                remedy="Set it to a string, or leave it out.",
                param=f"input[{index}].content",
            )
    body = _with_translated(with_strict_forced_calls(body), "input", with_whole_texts)
    return {**body, "store": False}


def _refuse_unserved_choice(choice: Any) -> None:
    """Refuse a choice that vLLM would ignore: it accepts each of OpenAI's kinds, but treats all types except
    ``function`` as ``auto``.
    """
    if isinstance(choice, dict) and choice.get("type") != "function":
        raise InvalidRequest(
            Code.FIELD_UNSUPPORTED,
            f"`tool_choice` is of the type {choice.get('type')!r}, which is not served here.",
            remedy='Make it "none", "auto", "required" or {"type": "function", "name": …}.',
            param="tool_choice",
        )


def with_strict_forced_calls(body: dict[str, Any]) -> dict[str, Any]:
    """Return the request with strict tools if ``tool_choice`` forces a call of them.

    vLLM applies the function's schema to a call only if the tool is strict; otherwise a forced call could be any JSON,
    or missing. ``strict: false`` does not show that the caller wants this: LlamaIndex sends it with every tool.
    """
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not isinstance(tools, list) or not (choice == "required" or isinstance(choice, dict)):
        return body
    named = choice.get("function", choice) if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    return {**body, "tools": [_strict(tool, name) for tool in tools]}


def _strict(tool: Any, name: str | None) -> Any:
    """Return a strict copy of a tool that can be called: the named one, or any. A chat's tool has its function in a
    field.
    """
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or name not in (None, function.get("name")):
        return tool
    strict = {**function, "strict": True}
    return strict if function is tool else {**tool, "function": strict}


def _with_translated(body: dict[str, Any], field: str, translate: Callable[[list[Any]], list[Any]]) -> dict[str, Any]:
    """Return the body with the list in a field translated; the body itself if that changes nothing."""
    given = body.get(field)
    translated = translate(given) if isinstance(given, list) else given
    return body if translated is given else {**body, field: translated}


def _refuse_empty(body: dict[str, Any], field: str) -> None:
    if body.get(field) in EMPTY:
        remedy = "Put the prompt for the model into it."
        raise InvalidRequest(Code.REQUEST_INVALID, f"`{field}` is empty.", remedy=remedy, param=field)


def _not_stored(param: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(
        Code.RESPONSE_NOT_STORED,
        f"`{param}` is not supported: Mens does not store responses.",
        remedy=remedy,
        param=param,
    )

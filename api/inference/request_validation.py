"""Rejects requests that vLLM would accept although they cannot be intended, or whose answer would differ from what they
request.

Examples: empty `messages`, a message without content, an unknown role, an empty prompt. Each request to OpenAI's
Responses API is answered on its own: a replica would keep a stored response in its own memory indefinitely, and no
other replica would know it, so a request that needs a stored response is refused rather than answered by chance.

The tables at the end list the checks of each route; the gateway (`api/inference/gateway.py`) runs the checks of every
model route: `check_types` and the limits of grammars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from api.inference.request_fields.functions import with_tools
from api.inference.request_fields.known import check_chat_fields, check_completion_fields, check_response_fields
from api.inference.request_fields.messages import check_messages, with_refusals, with_whole_texts
from api.inference.request_fields.nested import (
    check_nested_chat_fields,
    check_nested_response_fields,
    check_stream_options,
)
from api.inference.request_fields.tool_schemas import with_schemas_without_nulls
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


@dataclass(frozen=True, slots=True)
class BodyCheck:
    """A check of a request's body.

    Attributes:
        check: refuses a body, or returns the body for the next check; None: the same body.
        fields: names of fields; the check is skipped for a body that has none of them; empty: the check is never
            skipped.
    """

    check: Callable[[dict[str, Any]], dict[str, Any] | None]
    fields: tuple[str, ...] = ()


def validate(body: dict[str, Any], checks: Sequence[BodyCheck]) -> dict[str, Any]:
    """Return the body as it is sent to a replica, after one check after the other."""
    for body_check in checks:
        if not body_check.fields or not body.keys().isdisjoint(body_check.fields):
            body = body_check.check(body) or body
    return body


def validate_chat(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a chat completion as it is sent to a replica, if its messages can be intended."""
    return validate(body, CHAT)


def validate_completion(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a text completion unchanged, unless its prompt is empty or a field is wrong.

    A missing prompt is left for vLLM to refuse, since it also accepts a prompt as embeddings.
    """
    return validate(body, COMPLETION)


def validate_response(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a Responses API request as it is sent to a replica: nothing is stored."""
    return validate(body, RESPONSE)


def check_intended_messages(body: dict[str, Any]) -> None:
    """Check the roles and contents of the messages of a chat.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: a message has no content, or a role that chats do not have.
    """
    messages = body["messages"]
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
        # Clients send an assistant's `"content": null` back after an answer without text, such as a truncated thought.
        is_null_answer = role == "assistant" and content is None and "content" in message
        has_substitute = is_null_answer or any(map(message.get, INSTEAD_OF_CONTENT.get(role, ())))
        if not content and content != "" and not has_substitute:
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"messages[{index}] has no content.",
                remedy="Set it to a string, which may be empty; only an assistant's message with `tool_calls` may omit it.",
                param=f"messages[{index}].content",
            )


def refuse_stored_response(body: dict[str, Any]) -> None:
    """Refuse a request that needs stored responses.

    Raises:
        InvalidRequest: ``RESPONSE_NOT_STORED``: the request needs a stored response, or asks for its response to be stored.
    """
    for name in NEED_A_STORED_RESPONSE:
        if body.get(name):
            raise _not_stored(name, "Send the whole conversation in `input`, and wait for the answer.")
    if body.get("store") is True:
        raise _not_stored("store", "Leave `store` out, or set it to false.")


def refuse_server_tools(body: dict[str, Any]) -> None:
    """Refuse tools that are not functions.

    Raises:
        InvalidRequest: ``TOOL_UNSUPPORTED``: a tool that the server itself would run.
    """
    tools = body["tools"]
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            raise InvalidRequest(
                Code.TOOL_UNSUPPORTED,
                f"A tool of the type {kind!r} would have to run on the server, which is not supported.",
                remedy="Describe it as a function, and run it yourself.",
                param=f"tools[{index}].type",
            )


def check_intended_items(body: dict[str, Any]) -> None:
    """Check the contents of the input messages of a response.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: an input message that is not the model's own is empty.
    """
    items = body["input"]
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("content") == [] and item.get("role") not in (None, "assistant"):
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"input[{index}] has no content.",
                remedy="Set it to a string, or leave it out.",
                param=f"input[{index}].content",
            )


def refuse_unserved_choice(body: dict[str, Any]) -> None:
    """Refuse a choice that vLLM would ignore: it accepts each of OpenAI's kinds, but treats all types except
    ``function`` as ``auto``.

    Raises:
        InvalidRequest: ``FIELD_UNSUPPORTED``.
    """
    choice = body["tool_choice"]
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


def _with_translated(field: str, translate: Callable[[list[Any]], list[Any]], body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with the list in a field translated; the body itself if the translation does not change it."""
    original = body.get(field)
    translated = translate(original) if isinstance(original, list) else original
    return body if translated is original else {**body, field: translated}


def _refuse_empty(field: str, body: dict[str, Any]) -> None:
    if body.get(field) in EMPTY:
        remedy = "Put the prompt for the model into it."
        raise InvalidRequest(Code.REQUEST_INVALID, f"`{field}` is empty.", remedy=remedy, param=field)


def _refuse_empty_prompt(body: dict[str, Any]) -> None:
    if not body.get("prompt_embeds"):
        _refuse_empty("prompt", body)


def _not_stored(param: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(
        Code.RESPONSE_NOT_STORED,
        f"`{param}` is not supported: Mens does not store responses.",
        remedy=remedy,
        param=param,
    )


CHAT = (
    BodyCheck(check_chat_fields),
    BodyCheck(check_nested_chat_fields, ("stream_options", "functions", "tools", "messages")),
    BodyCheck(lambda body: check_messages(body["messages"]), ("messages",)),
    BodyCheck(with_tools, ("functions", "function_call", "messages")),
    BodyCheck(check_chat_tools, ("tools",)),
    BodyCheck(with_schemas_without_nulls, ("tools",)),
    BodyCheck(with_strict_forced_calls, ("tools",)),
    BodyCheck(partial(_refuse_empty, "messages"), ("messages",)),
    BodyCheck(check_intended_messages, ("messages",)),
    BodyCheck(partial(_with_translated, "messages", with_refusals), ("messages",)),
)
"""Checks of a chat completion, in their order: a later one may rely on an earlier one."""
COMPLETION = (
    BodyCheck(check_completion_fields),
    BodyCheck(check_stream_options, ("stream_options",)),
    BodyCheck(_refuse_empty_prompt, ("prompt",)),
)
RESPONSE = (
    BodyCheck(check_response_fields),
    BodyCheck(refuse_stored_response, (*NEED_A_STORED_RESPONSE, "store")),
    BodyCheck(refuse_server_tools, ("tools",)),
    BodyCheck(check_nested_response_fields, ("stream_options", "tools", "text", "reasoning")),
    BodyCheck(refuse_unserved_choice, ("tool_choice",)),
    BodyCheck(partial(_refuse_empty, "input"), ("input",)),
    BodyCheck(check_intended_items, ("input",)),
    BodyCheck(with_schemas_without_nulls, ("tools",)),
    BodyCheck(with_strict_forced_calls, ("tools",)),
    BodyCheck(partial(_with_translated, "input", with_whole_texts), ("input",)),
    BodyCheck(lambda body: {**body, "store": False}),
)

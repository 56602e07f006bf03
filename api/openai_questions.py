"""OpenAI's questions that vLLM would answer although they ask nothing, or not what they say. Pure.

It takes a message without content for an empty one, and leaves a role that it does not know to the base's chat template, which
often drops the message. What it refuses by itself is left to it. Every request comes by here, so little is looked at.
"""

from __future__ import annotations

from typing import Any

from shared.errors import Code, InvalidRequest
from shared.row_checks import ROLES

NOTHING: tuple[Any, ...] = ("", [], {})
INSTEAD_OF_CONTENT = {
    "assistant": ("tool_calls", "reasoning", "reasoning_content", "refusal", "function_call", "audio"),
    "developer": ("tools",),
}
"""What of a message may stand for its content."""


def asks_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The request, if its messages can be what the caller meant.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: no messages, one without content, or one by a role that chats do not have.
    """
    messages = asks(body, "messages").get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            continue  # vLLM says what is wrong with it
        if role not in ROLES:
            raise _unknown_role(index, role)
        content = message.get("content")
        if not content and content != "" and not _can_do_without(message, role):
            raise _no_content(index)
    return body


def asks_completion(body: dict[str, Any]) -> dict[str, Any]:
    """The request, unless its prompt is empty. Where there is none, vLLM says so; it takes one as embeddings too.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    return body if body.get("prompt_embeds") else asks(body, "prompt")


def asks_response(body: dict[str, Any]) -> dict[str, Any]:
    """The request, unless its input or a message of it is empty. An earlier answer of the model may be.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    items = asks(body, "input").get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("content") == [] and item.get("role") not in (None, "assistant"):
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"input[{index}] has no content.",
                remedy="Give it a text, or leave it out.",
                param=f"input[{index}].content",
            )
    return body


def asks(body: dict[str, Any], field: str) -> dict[str, Any]:
    """The request, unless the field that says what is asked is empty.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    if body.get(field) in NOTHING:
        remedy = "Say in it what the model is to answer."
        raise InvalidRequest(Code.REQUEST_INVALID, f"`{field}` is empty.", remedy=remedy, param=field)
    return body


def _can_do_without(message: dict[str, Any], role: str) -> bool:
    if role == "assistant" and message.get("content", "") is None:
        return True  # an answer of which nothing was left, such as a thought cut short, is sent back like this
    return any(map(message.get, INSTEAD_OF_CONTENT.get(role, ())))


def _unknown_role(index: int, role: str) -> InvalidRequest:
    return InvalidRequest(
        Code.REQUEST_INVALID,
        f"messages[{index}].role is {role!r}.",
        remedy=f"Make it one of {', '.join(ROLES)}.",
        param=f"messages[{index}].role",
    )


def _no_content(index: int) -> InvalidRequest:
    return InvalidRequest(
        Code.REQUEST_INVALID,
        f"messages[{index}] has no content.",
        remedy="Give it a text, which may be empty; only an assistant's message with `tool_calls` can do without.",
        param=f"messages[{index}].content",
    )

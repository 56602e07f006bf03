"""OpenAI's questions that vLLM would answer although they ask nothing, or not what they say. Pure.

It takes a message without content for an empty one, and leaves a role that it does not know to the base's chat template, which
often drops the message. What it refuses by itself is left to it. Every request comes by here, so little is looked at.
"""

from __future__ import annotations

from typing import Any

from shared.errors import Code, InvalidRequest
from shared.row_checks import ROLES

NOTHING: tuple[Any, ...] = ([], {})
INSTEAD_OF_CONTENT = {"assistant": ("tool_calls", "reasoning", "reasoning_content"), "developer": ("tools",)}
"""What of a message chat templates read besides its content."""


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
        if not content and content != "" and not any(map(message.get, INSTEAD_OF_CONTENT.get(role, ()))):
            raise _no_content(index)
    return body


def asks_completion(body: dict[str, Any]) -> dict[str, Any]:
    """The request, if it has a prompt or none at all, which vLLM refuses.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: a list of no prompts.
    """
    return asks(body, "prompt")


def asks(body: dict[str, Any], field: str) -> dict[str, Any]:
    """The request, unless the field that says what is asked is an empty list or object.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    if body.get(field) in NOTHING:
        remedy = "Say in it what the model is to answer."
        raise InvalidRequest(Code.REQUEST_INVALID, f"`{field}` is empty.", remedy=remedy, param=field)
    return body


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

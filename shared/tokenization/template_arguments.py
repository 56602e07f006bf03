"""Arguments of a chat template (``enable_thinking``, ``reasoning_effort`` …): the known ones, and the check of a
contract's.

This module finds the arguments that a template knows, refuses others, and reports arguments without effect. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.contract.choices import ThoughtsRule
from shared.contract.sections import DataSection
from shared.contract.values import ArgumentValue, FrozenDict, describe_arguments
from shared.errors import Code, ContractRejected, InvalidRequest
from shared.tokenization.chat_template import RESERVED_ARGUMENTS, ChatTemplate, Turn

PARAM = "data.template_arguments"
_CALL = {"id": "call00001", "type": "function", "function": {"name": "look_up", "arguments": {"word": "a"}}}
_TOOL = {"name": "look_up", "description": "Look it up.", "parameters": {"type": "object", "properties": {}}}
_ANSWER = {"role": "assistant", "content": "A mistake.", "reasoning": "Hm.", "reasoning_content": "Hm."}
_PROBES: tuple[tuple[Turn, ...], ...] = (
    ({"role": "user", "content": "What is a bug?"},),
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a bug?"}),
    ({"role": "user", "content": "What is a bug?"}, _ANSWER, {"role": "user", "content": "And a test?"}),
    ({"role": "user", "content": "What is a bug?"}, _ANSWER),
    (
        {"role": "user", "content": "What is a bug?"},
        _ANSWER | {"content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": "A mistake.", "tool_call_id": "call00001"},
    ),
)
"""Chats that show an argument's effect: prompts, thoughts before and after the last question, calls."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """A contract's options for rendering chats with the base's template.

    Attributes:
        arguments: the template's arguments, by name.
        thoughts: rule for answers' thoughts.
    """

    arguments: Mapping[str, ArgumentValue] = field(default_factory=FrozenDict)
    thoughts: ThoughtsRule = ThoughtsRule.LEARN

    @staticmethod
    def of(data: DataSection) -> ChatOptions:
        """Return the options of a contract's data section."""
        return ChatOptions(data.template_arguments, data.thoughts)

    def content(self) -> dict[str, Any]:
        """Return the options that differ from the defaults, for digests."""
        arguments = {"arguments": dict(self.arguments)} if self.arguments else {}
        return arguments | ({} if self.thoughts is ThoughtsRule.LEARN else {"thoughts": self.thoughts})


DEFAULT_OPTIONS = ChatOptions()


def known_arguments(templates: Iterable[ChatTemplate]) -> list[str]:
    """Return the names of the arguments that a base's templates know, in order."""
    return sorted(frozenset[str]().union(*(template.argument_names for template in templates)))


def check_arguments(templates: Sequence[ChatTemplate], arguments: Mapping[str, ArgumentValue]) -> None:
    """Refuse arguments that a base's templates do not know or do not accept.

    Args:
        templates: compiled with the arguments.

    Raises:
        ContractRejected: ``TEMPLATE_ARGUMENT_UNKNOWN``, with the known names; ``TEMPLATE_ARGUMENT_INVALID``: a name
            that the server sets, or a value with which a template fails.
    """
    accepted = known_arguments(templates)
    for name, value in arguments.items():
        if name in RESERVED_ARGUMENTS:
            raise _invalid(name, "is set by the server for each chat", "Leave it out.")
        if name not in accepted:
            raise ContractRejected(
                Code.TEMPLATE_ARGUMENT_UNKNOWN,
                f"The base's chat template does not have an argument {name!r}.",
                remedy=f"Use one of its arguments: {', '.join(accepted)}."
                if accepted
                else "Leave the arguments out: the template does not have any.",
                param=f"{PARAM}.{name}",
                details={"known": accepted},
            )
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            remedy = f"Write {value.strip().lower()} without quotation marks."
            raise _invalid(name, f"is the string {value!r}, but a template needs true or false", remedy)
    for template in templates:
        for chat, prompt in _probes():
            try:
                template.render(chat, _tools(chat), prompt)
            except InvalidRequest as error:
                if _text(template.with_arguments({}), chat, prompt) is not None:
                    reason = error.message.partition(": ")[2]
                    message = f"The base's chat template refuses {describe_arguments(arguments)}: {reason}"
                    raise ContractRejected(
                        Code.TEMPLATE_ARGUMENT_INVALID,
                        message,
                        remedy="Use a value that the template accepts; the base's model card lists them.",
                        param=PARAM,
                    ) from None


def idle_arguments(templates: Sequence[ChatTemplate], arguments: Mapping[str, ArgumentValue]) -> list[str]:
    """Return the names of arguments that change no probe chat."""
    return [
        name
        for name in arguments
        if all(
            _text(template, chat, prompt) == _text(template.with_arguments(_without(arguments, name)), chat, prompt)
            for template in templates
            for chat, prompt in _probes()
        )
    ]


def _without(arguments: Mapping[str, ArgumentValue], name: str) -> dict[str, ArgumentValue]:
    return {other: value for other, value in arguments.items() if other != name}


def _probes() -> list[tuple[Sequence[Turn], bool]]:
    return [(chat, prompt) for chat in _PROBES for prompt in (False, True)]


def _tools(chat: Sequence[Turn]) -> list[Turn] | None:
    return [{"type": "function", "function": _TOOL}] if any("tool_calls" in turn for turn in chat) else None


def _text(template: ChatTemplate, chat: Sequence[Turn], prompt: bool) -> str | None:
    try:
        return template.render(chat, _tools(chat), prompt).text
    except InvalidRequest:
        return None


def _invalid(name: str, fault: str, remedy: str) -> ContractRejected:
    message = f"{PARAM}.{name} {fault}."
    return ContractRejected(Code.TEMPLATE_ARGUMENT_INVALID, message, remedy=remedy, param=f"{PARAM}.{name}")

"""Contradictory fields of one row, which are refused because Mens does not guess, and unused fields."""

from __future__ import annotations

from collections.abc import Iterator

from shared.datasets.rows import Message, Record, RowCode, RowError

_PROMPTS = ("prompt", "instruction")
_ANSWERS = ("response", "output", "completion")
_TOOL_KEYS = frozenset(("type", "function"))
_FUNCTION_KEYS = frozenset(("name", "description", "parameters", "strict"))
"""Keys of a function that vLLM gives to a template."""


def refuse_conflicts(record: Record) -> None:
    """Refuse a row if a part of it would have to be left out.

    With ``messages``, a prompt is accepted if a turn before an answer has the same text, a response if an answer has
    the same text, and a system text unless the first turn is a system turn with different text.

    Raises:
        RowError: ``ROW_FIELD_CONFLICT``.
    """
    turns = record.messages or record.turns
    if not turns:
        if record.instruction:
            _refuse_different(record, _PROMPTS)
        if record.output or record.completion:
            _refuse_different(record, _ANSWERS)
        return
    if record.messages and record.turns and record.messages != record.turns:
        raise _conflict("turns", "messages", "they are not the same")
    _refuse_unsaid(record, _PROMPTS, [turn for turn in turns if turn.role != "assistant"], "no turn before an answer")
    _refuse_unsaid(record, _ANSWERS, [turn for turn in turns if turn.role == "assistant"], "no answer")
    first = turns[0]
    if record.system and first.role in ("system", "developer") and first.content != record.system:
        raise _conflict("system", "messages", "the first turn says something else")


def unused_fields(record: Record) -> list[str]:
    """List the known fields that are not used in this row: a prompt's field next to messages, an id where no call is
    answered, the weight 1 of a turn that is not an answer, a tool's keys that no template gets, labels.
    """
    turns: list[Message] = record.messages or record.turns or []
    if not (turns or record.tools or record.syntax_spans):
        return []
    contents = {message.content for message in turns}
    names = [
        name for name in ("input", "context") if turns and (text := getattr(record, name)) and text not in contents
    ]
    turn_path = f"{'messages' if record.messages else 'turns'}[]"
    if any(turn.tool_call_id and turn.role != "tool" for turn in turns):
        names.append(f"{turn_path}.tool_call_id")
    if any(turn.weight and turn.role != "assistant" for turn in turns):
        names.append(f"{turn_path}.weight")
    names += sorted(set(_unused_tool_keys(record)))
    if any(span.kind for span in record.syntax_spans or ()):
        names.append("syntax_spans[].kind")
    return names


def _unused_tool_keys(record: Record) -> Iterator[str]:
    for tool in record.tools or ():
        if isinstance(function := tool.get("function"), dict):  # else the template gets it unchanged
            yield from (f"tools[].{key}" for key in tool.keys() - _TOOL_KEYS if tool[key])
            yield from (f"tools[].function.{key}" for key in function.keys() - _FUNCTION_KEYS if function[key])


def _refuse_unsaid(record: Record, names: tuple[str, ...], turns: list[Message], absence: str) -> None:
    contents = {(turn.content or "").strip() for turn in turns}
    for name in names:
        text = (getattr(record, name) or "").strip()
        if text and text not in contents:
            raise _conflict(name, "messages", f"{absence} contains it")


def _refuse_different(record: Record, names: tuple[str, ...]) -> None:
    there = [name for name in names if getattr(record, name)]
    for name in there[1:]:
        if getattr(record, name) != getattr(record, there[0]):
            raise _conflict(name, there[0], "they are not the same")


def _conflict(name: str, other: str, reason: str) -> RowError:
    return RowError(
        RowCode.ROW_FIELD_CONFLICT, f"{name} and {other} are both present, and {reason}; keep one of them", name
    )

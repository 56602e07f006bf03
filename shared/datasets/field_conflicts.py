"""Fields of one row that say different things: which of them was meant is not for us to guess."""

from __future__ import annotations

from shared.datasets.rows import Message, Record, RowCode, RowError

_PROMPTS = ("prompt", "instruction")
_ANSWERS = ("response", "output", "completion")


def refuse_conflicts(record: Record) -> None:
    """Refuse a row of which a part would have to be left out.

    Beside ``messages``, a prompt or response may be there if a turn says the same; so may a system text.

    Raises:
        RowError: ``ROW_FIELD_CONFLICT``.
    """
    turns = record.messages or record.turns
    if not turns:
        for names in (_PROMPTS, _ANSWERS):
            _refuse_different(record, names)
        return
    if record.messages and record.turns and record.messages != record.turns:
        raise _conflict("turns", "messages", "they are not the same")
    said = {(message.content or "").strip() for message in turns}
    for name in (*_PROMPTS, *_ANSWERS):
        text = (getattr(record, name) or "").strip()
        if text and text not in said:
            raise _conflict(name, "messages", "no turn says it")
    first = turns[0]
    if record.system and first.role in ("system", "developer") and first.content != record.system:
        raise _conflict("system", "messages", "the first turn says something else")


def unused_texts(record: Record) -> list[str]:
    """Names of texts that belong to a prompt and are not used beside messages."""
    turns: list[Message] | None = record.messages or record.turns
    if not turns:
        return []
    said = {message.content for message in turns}
    return [name for name in ("input", "context") if (text := getattr(record, name)) and text not in said]


def _refuse_different(record: Record, names: tuple[str, ...]) -> None:
    there = [name for name in names if getattr(record, name)]
    for name in there[1:]:
        if getattr(record, name) != getattr(record, there[0]):
            raise _conflict(name, there[0], "they are not the same")


def _conflict(name: str, other: str, reason: str) -> RowError:
    return RowError(RowCode.ROW_FIELD_CONFLICT, f"{name} is there beside {other}, and {reason}; keep one of them", name)

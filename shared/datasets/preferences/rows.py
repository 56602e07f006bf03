"""Rows of preferences: a prompt, the answer that is preferred, and the one that is rejected, in the forms that are in use.

    {"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]}    OpenAI's
    {"prompt": [...], "chosen": [...], "rejected": [...]}                                       TRL's, conversational
    {"chosen": [...], "rejected": [...]}                                                        TRL's, with an implicit prompt
    {"prompt": "...", "chosen": "...", "rejected": "..."}, optional "system"                    plain

Both sides become chats whose last turn is the only one that is learnt, so the checks of chats (``row_validation.py``)
apply to them unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shared.datasets.forms.flags import FLAGS
from shared.datasets.forms.recognition import RowForm, recognise
from shared.datasets.row_validation import FAILURES, check_length, check_record, decode_strictly, explain
from shared.datasets.rows import Labels, Message, Record, RowCode, RowError, TrainingRow, as_row
from shared.datasets.written_rows import translate

Row = dict[str, Any]
_PREFERRED = ("preferred_output", "preferred_completion")
_NON_PREFERRED = ("non_preferred_output", "non_preferred_completion")
LABELS = tuple(name for name in Labels.__struct_fields__ if name != "syntax_spans")
_ANSWERS = (("chosen", "rejected"), *zip(_PREFERRED, _NON_PREFERRED, strict=True))
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_DECODE = msgspec.json.Decoder(Row).decode
_PLACE = re.compile(r"messages\[(\d+)\]")
_ASSISTANT = "assistant"


class PairRecord(Record, frozen=True, gc=False, kw_only=True):
    """A row of preferences: itself the chat with the preferred answer, and the same chat with the rejected one."""

    rejected: Record

    def written_turns(self) -> list[Message]:
        """Return every turn of the row: prompt, preferred answer, rejected answer."""
        return [*self.conversation(), self.rejected.conversation()[-1]]

    @property
    def prompt_turns(self) -> list[Message]:
        """The turns before the answers."""
        return self.conversation()[:-1]


@dataclass(frozen=True, slots=True)
class ParsedPair:
    """A row of preferences, and the keys in it that have a value and no meaning here."""

    record: PairRecord
    unused_keys: list[str]


@dataclass(frozen=True, slots=True)
class _Side:
    """One answer of a pair as it is written: its turns, and the name of its field."""

    turns: list[Any]
    field: str


@dataclass(frozen=True, slots=True)
class _Written:
    """A row as it is written.

    Attributes:
        prompt: its turns; prompt_field: the field that holds them.
        used: names of the keys that have a meaning.
    """

    prompt: list[Any]
    prompt_field: str
    tools: Any
    chosen: _Side
    rejected: _Side
    used: tuple[str, ...]


def parse_pair(line: bytes) -> ParsedPair:
    """Decode and check one line.

    Raises:
        RowError: the line's fault.
    """
    row = _decoded(line)
    written = _read(row)
    for side in (written.chosen, written.rejected):
        _check_answer(side)
    if isinstance(last := written.prompt[-1], dict) and last.get("role") == _ASSISTANT:
        place = f"{written.prompt_field}[{len(written.prompt) - 1}].role"
        reason = f"{place}: the prompt ends with the assistant's turn, so nothing asks for the answers"
        raise RowError(RowCode.ROW_PROMPT_ENDS_WITH_ANSWER, reason, place)
    labels = {name: row[name] for name in LABELS if name in row}
    chosen, rejected = (_record(written, side, labels, line) for side in (written.chosen, written.rejected))
    if essence(chosen.conversation()[-1]) == essence(rejected.conversation()[-1]):
        raise _equal(written.rejected.field)
    fields = {name: getattr(chosen, name) for name in Record.__struct_fields__}
    unused = [key for key in row if key not in written.used and key not in LABELS and row[key] not in _EMPTY]
    return ParsedPair(PairRecord(**fields, rejected=rejected), unused)


def essence(turn: Message) -> tuple[Any, ...]:
    """Return what a model would learn of an answer, without white space around it."""
    return ((turn.content or "").strip(), turn.tool_calls or None, (turn.reasoning_content or "").strip())


def as_rows(record: PairRecord, number: int) -> tuple[TrainingRow, TrainingRow]:
    """Return the chats with the preferred and with the rejected answer, as rows of one line."""
    return as_row(record, number), as_row(record.rejected, number)


def parse_chosen(line: bytes, number: int) -> TrainingRow:
    """Return the chat with the preferred answer.

    Raises:
        RowError: the line's fault.
    """
    return as_row(parse_pair(line).record, number)


def _decoded(line: bytes) -> Row:
    try:
        check_length(line)
        return _DECODE(line)
    except FAILURES as failure:
        raise explain(line, failure) from None


def _read(row: Row) -> _Written:
    """Find the parts of a row, in whatever form it is written.

    Raises:
        RowError: ``ROW_FIELD_MISSING``, ``ROW_FIELD_TYPE``, ``ROW_METHOD_MISMATCH``, ``ROW_PROMPTS_DIFFER``.
    """
    names = next((pair for pair in _ANSWERS if not row.keys().isdisjoint(pair)), None)
    if names is None:
        raise _without_answers(row)
    chosen, rejected = names
    for name in names:
        if row.get(name) is None:
            raise _missing(name)
    if names != _ANSWERS[0]:
        return _openai(row, chosen, rejected)
    if isinstance(row[chosen], str) or isinstance(row[rejected], str):
        return _plain(row)
    sides = [_Side(_turns(row[name], name), name) for name in names]
    if row.get("prompt") is None:
        return _implicit(row, *sides)
    prompt = _turns(row["prompt"], "prompt")
    return _written(prompt, "prompt", row.get("tools"), sides, used=("prompt", "tools", chosen, rejected))


def _openai(row: Row, chosen: str, rejected: str) -> _Written:
    given = row.get("input")
    if given is None:
        raise _missing("input")
    if not isinstance(given, dict):
        raise _wrong_type("input", "an object with `messages`")
    if given.get("messages") is None:
        raise _missing("input.messages")
    prompt = _turns(given["messages"], "input.messages")
    sides = [_Side(_turns(row[name], name), name) for name in (chosen, rejected)]
    return _written(prompt, "input.messages", given.get("tools"), sides, used=("input", chosen, rejected))


def _plain(row: Row) -> _Written:
    for name in ("prompt", "chosen", "rejected"):
        if row.get(name) is None:
            raise _missing(name)
        if not isinstance(row[name], str):
            raise _wrong_type(name, "text, as another part of the row is")
    prompt = [{"role": "user", "content": row["prompt"]}]
    if row.get("system"):
        prompt.insert(0, {"role": "system", "content": row["system"]})
    sides = [_Side([{"role": _ASSISTANT, "content": row[name]}], name) for name in ("chosen", "rejected")]
    used = ("prompt", "system", "tools", "chosen", "rejected")
    return _written(prompt, "prompt", row.get("tools"), sides, used=used)


def _implicit(row: Row, chosen: _Side, rejected: _Side) -> _Written:
    """Split off the turns that both sides have in common, as TRL does; the rest of each must be one answer."""
    pairs = enumerate(zip(chosen.turns, rejected.turns, strict=False))
    shorter = min(len(chosen.turns), len(rejected.turns))
    common = next((index for index, (one, other) in pairs if one != other), shorter)
    if common == shorter == len(chosen.turns) == len(rejected.turns) and common:
        raise _equal(rejected.field)
    rests = len(chosen.turns) - common, len(rejected.turns) - common
    if not common or rests != (1, 1):
        what = "have no first turn in common" if not common else "differ in more than their last turn"
        reason = f"chosen and rejected {what}, so the prompt is not known; write it as `prompt`"
        raise RowError(RowCode.ROW_PROMPTS_DIFFER, reason, rejected.field)
    sides = [_Side(side.turns[common:], side.field) for side in (chosen, rejected)]
    return _written(chosen.turns[:common], "chosen", row.get("tools"), sides, used=("tools", "chosen", "rejected"))


def _written(prompt: list[Any], field: str, tools: Any, sides: Sequence[_Side], used: tuple[str, ...]) -> _Written:
    if not prompt:
        raise RowError(RowCode.ROW_FIELD_MISSING, f"`{field}` is empty; it needs at least one turn", field)
    chosen, rejected = sides
    return _Written(prompt, field, tools, chosen, rejected, used)


def _check_answer(side: _Side) -> None:
    """Raises:
    RowError: ``ROW_ANSWER_COUNT``, ``ROW_FIELD_TYPE``, ``ROW_ANSWER_ROLE``.
    """
    if len(side.turns) != 1:
        reason = f"{side.field} has {len(side.turns)} turns; an answer is exactly one turn of the assistant"
        raise RowError(RowCode.ROW_ANSWER_COUNT, reason, side.field)
    turn, place = side.turns[0], f"{side.field}[0]"
    if not isinstance(turn, dict):
        raise _wrong_type(place, "an object")
    if turn.get("role") != _ASSISTANT:
        reason = f"{place}.role is {str(turn.get('role'))[:60]!r}; an answer is the assistant's turn"
        raise RowError(RowCode.ROW_ANSWER_ROLE, reason, f"{place}.role")


def _record(written: _Written, side: _Side, labels: Row, line: bytes) -> Record:
    """Return the chat of one side: earlier answers are read and not learnt, so they weigh 0.

    Raises:
        RowError: a fault of a turn, a tool or a label, with the place of the field in the row.
    """
    answer = {key: value for key, value in side.turns[0].items() if key not in ("weight", *FLAGS)}
    chat = {"messages": [*map(_unlearnt, written.prompt), answer], **labels}
    if written.tools:
        chat["tools"] = written.tools
    try:
        text = msgspec.json.encode(chat)
        try:
            record = decode_strictly(text)
        except msgspec.ValidationError:
            record = translate(text).record
        check_record(record, line)
    except FAILURES as failure:
        raise _located(failure if isinstance(failure, RowError) else explain(text, failure), written, side) from None
    return record


def _unlearnt(turn: Any) -> Any:
    if not isinstance(turn, dict):
        return turn
    kept = {key: value for key, value in turn.items() if key not in ("weight", *FLAGS)}
    return kept | {"weight": 0} if turn.get("role") == _ASSISTANT else kept


def _located(error: RowError, written: _Written, side: _Side) -> RowError:
    """Return the error with the row's own names of the fields."""

    def place(found: re.Match[str]) -> str:
        index = int(found[1])
        return f"{written.prompt_field}[{index}]" if index < len(written.prompt) else f"{side.field}[0]"

    return RowError(error.code, _PLACE.sub(place, error.reason), _PLACE.sub(place, error.field))


def _equal(field: str) -> RowError:
    return RowError(RowCode.ROW_ANSWERS_EQUAL, "both answers are the same, so none is preferred", field)


def _turns(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong_type(field, "a list of turns")
    return value


def _missing(name: str) -> RowError:
    return RowError(RowCode.ROW_FIELD_MISSING, f"`{name}` is missing", name)


def _wrong_type(field: str, expected: str) -> RowError:
    return RowError(RowCode.ROW_FIELD_TYPE, f"{field} must be {expected}", field)


def _without_answers(row: Row) -> RowError:
    if form := recognise(row):
        rated = "the row rates one answer, as for KTO, and has no second one"
        learnt = "the row has no two answers to prefer one of; it is a row for supervised tuning"
        return RowError(RowCode.ROW_METHOD_MISMATCH, rated if form is RowForm.KTO else learnt)
    names = "`chosen` with `rejected`, or `preferred_output` with `non_preferred_output`,"
    return RowError(RowCode.ROW_FIELD_MISSING, f"{names} is missing")

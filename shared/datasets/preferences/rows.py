"""Rows of preferences: a prompt, the answer that is preferred, and the one that is rejected, in the forms that are in use.

    {"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]}    OpenAI's
    {"prompt": [...], "chosen": [...], "rejected": [...]}                                       TRL's, conversational
    {"chosen": [...], "rejected": [...]}                                                        TRL's, with an implicit prompt
    {"prompt": "...", "chosen": "...", "rejected": "..."}, optional "system"                    plain

Both sides become chats in which only the last turn is trained on, so the checks of chats (``row_validation.py``) apply
to them unchanged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shared.datasets.forms.flags import FLAGS
from shared.datasets.forms.recognition import DESCRIPTIONS, RowForm, is_foreign, rates_its_answer, recognise
from shared.datasets.forms.tools import unlisted_call
from shared.datasets.row_validation import FAILURES, check_length, check_record, decode_strictly, explain
from shared.datasets.rows import Labels, Message, Record, RowCode, RowError, TrainingRow, as_row
from shared.datasets.written_rows import translate

Row = dict[str, Any]
_PREFERRED = ("preferred_output", "preferred_completion")
_NON_PREFERRED = ("non_preferred_output", "non_preferred_completion")
LABELS = tuple(name for name in Labels.__struct_fields__ if name != "syntax_spans")
ANSWERS = (("chosen", "rejected"), *zip(_PREFERRED, _NON_PREFERRED, strict=True))
MAX_COMPARED_PAIRS = 1_000_000
"""Rows that are compared with later ones; the fingerprints of more would not fit in bounded memory."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_DECODE = msgspec.json.Decoder(Row).decode
_PLACE = re.compile(r"messages\[(\d+)\]")
_ASSISTANT = "assistant"


class PreferenceRecord(Record, frozen=True, gc=False):
    """A row of which only the last turn is trained on, in comparison with the reference's scores."""

    @property
    def prompt_turns(self) -> list[Message]:
        """The turns before the answer."""
        return self.conversation()[:-1]

    def chats(self) -> tuple[Record, ...]:
        """Return the chat with each of the row's answers."""
        return (self,)


class PairRecord(PreferenceRecord, frozen=True, gc=False, kw_only=True):
    """A pair of answers: itself the chat with the preferred one, and the same chat with the rejected one."""

    rejected: Record

    def chats(self) -> tuple[Record, ...]:
        """Return the chat with the preferred answer, and the one with the rejected answer."""
        return self, self.rejected

    def written_turns(self) -> list[Message]:
        """Return every turn of the row: prompt, preferred answer, rejected answer."""
        return [*self.conversation(), self.rejected.conversation()[-1]]


@dataclass(frozen=True, slots=True)
class ParsedPreference:
    """A row of preferences, its keys that have a value but no meaning here, and a warning about the answer that is
    learnt.
    """

    record: PreferenceRecord
    unused_keys: list[str]
    warning: RowError | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """An answer as it is written.

    Attributes:
        turns: its turns.
        field: the name of the field that holds them.
        first: index of the first of them in that field.
    """

    turns: list[Any]
    field: str
    first: int = 0

    @property
    def place(self) -> str:
        """Path of its turn."""
        return f"{self.field}[{self.first}]"


@dataclass(frozen=True, slots=True)
class Written:
    """A row as it is written.

    Attributes:
        prompt: its turns.
        prompt_field: the field that holds them.
        answers: the preferred and the rejected one, or the rated one.
        used: names of the keys that have a meaning.
    """

    prompt: list[Any]
    prompt_field: str
    tools: Any
    answers: tuple[Side, ...]
    used: tuple[str, ...]

    def answered(self, labels: Row, line: bytes) -> list[Record]:
        """Return the chat of each answer, checked.

        Args:
            labels: the row's labels.
            line: the whole row.

        Raises:
            RowError: ``ROW_PROMPT_ENDS_WITH_ANSWER``, or a fault of an answer, a turn, a tool or a label.
        """
        for side in self.answers:
            _check_answer(side)
        if isinstance(last := self.prompt[-1], dict) and last.get("role") == _ASSISTANT:
            place = f"{self.prompt_field}[{len(self.prompt) - 1}].role"
            reason = f"{place}: the prompt ends with the assistant's turn, so nothing asks for an answer"
            raise RowError(RowCode.ROW_PROMPT_ENDS_WITH_ANSWER, reason, place)
        return [_record(self, side, labels, line) for side in self.answers]

    def warning_of(self, chat: Record) -> RowError | None:
        """Return the warning about the first answer, in its chat; earlier answers are not learnt."""
        warning = unlisted_call(chat)
        return warning and _located(warning, self, self.answers[0])

    def unused_keys(self, row: Row) -> list[str]:
        """Return the keys of the row that have a value and no meaning."""
        return [key for key in row if key not in self.used and key not in LABELS and row[key] not in _EMPTY]


def parse_pair(line: bytes) -> ParsedPreference:
    """Decode and check one line.

    Raises:
        RowError: the line's fault.
    """
    row = decode_row(line)
    written = _read(row)
    chosen, rejected = written.answered(labels_of(row), line)
    if essence(chosen.conversation()[-1]) == essence(rejected.conversation()[-1]):
        raise _equal(written.answers[1].field)
    fields = {name: getattr(chosen, name) for name in Record.__struct_fields__}
    # The other answer may be rejected for its call.
    pair = PairRecord(**fields, rejected=rejected)
    return ParsedPreference(pair, written.unused_keys(row), written.warning_of(chosen))


def labels_of(row: Row) -> Row:
    """Return the labels of a row."""
    return {name: row[name] for name in LABELS if name in row}


def essence(turn: Message) -> tuple[Any, ...]:
    """Return the part of an answer that a model would learn, without surrounding white space."""
    return ((turn.content or "").strip(), turn.tool_calls or None, (turn.reasoning_content or "").strip())


def fingerprint(value: Sequence[Any]) -> int:
    """Return a number that is equal for equal values, and equal for different values only with a probability of 2⁻⁶⁴."""
    return int.from_bytes(hashlib.blake2b(msgspec.json.encode(value), digest_size=8).digest())


def as_rows(record: PreferenceRecord, number: int) -> tuple[TrainingRow, ...]:
    """Return the chat with each answer of a row; of a pair, the chat with the preferred answer comes first."""
    return tuple(as_row(chat, number) for chat in record.chats())


def parse_chosen(line: bytes, number: int) -> TrainingRow:
    """Return the chat with the preferred answer.

    Raises:
        RowError: the line's fault.
    """
    return as_row(parse_pair(line).record, number)


def decode_row(line: bytes) -> Row:
    """Decode a line.

    Raises:
        RowError: it is too long, or not a JSON object.
    """
    try:
        check_length(line)
        return _DECODE(line)
    except FAILURES as failure:
        raise explain(line, failure) from None


def _read(row: Row) -> Written:
    """Find the parts of a row, which may be in any of the accepted forms.

    Raises:
        RowError: ``ROW_FIELD_MISSING``, ``ROW_FIELD_TYPE``, ``ROW_METHOD_MISMATCH``, ``ROW_PROMPTS_DIFFER``.
    """
    names = next((pair for pair in ANSWERS if not row.keys().isdisjoint(pair)), None)
    if names is None:
        raise _without_answers(row)
    chosen, rejected = names
    for name in names:
        if row.get(name) is None:
            raise missing(name)
    if names != ANSWERS[0]:
        return _openai(row, chosen, rejected)
    if isinstance(row[chosen], str) or isinstance(row[rejected], str):
        return _plain(row)
    sides = [Side(turns_in(row[name], name), name) for name in names]
    if row.get("prompt") is None:
        return _implicit(row, *sides)
    if isinstance(row["prompt"], str):
        raise wrong_type("prompt", "a list of turns, as chosen is; `mens data convert --as-pairs` converts it")
    prompt = turns_in(row["prompt"], "prompt")
    return written_row(prompt, "prompt", row.get("tools"), sides, used=("prompt", "tools", chosen, rejected))


def _openai(row: Row, chosen: str, rejected: str) -> Written:
    request = row.get("input")
    if request is None:
        raise missing("input")
    if not isinstance(request, dict):
        raise wrong_type("input", "an object with `messages`")
    if request.get("messages") is None:
        raise missing("input.messages")
    prompt = turns_in(request["messages"], "input.messages")
    sides = [Side(turns_in(row[name], name), name) for name in (chosen, rejected)]
    return written_row(prompt, "input.messages", request.get("tools"), sides, used=("input", chosen, rejected))


def _plain(row: Row) -> Written:
    for name in ("prompt", "chosen", "rejected"):
        if row.get(name) is None:
            raise missing(name)
        if not isinstance(row[name], str):
            raise wrong_type(name, "a string, because another part of the row is one")
    prompt = [{"role": "user", "content": row["prompt"]}]
    if row.get("system"):
        prompt.insert(0, {"role": "system", "content": row["system"]})
    sides = [Side([{"role": _ASSISTANT, "content": row[name]}], name) for name in ("chosen", "rejected")]
    used = ("prompt", "system", "tools", "chosen", "rejected")
    return written_row(prompt, "prompt", row.get("tools"), sides, used=used)


def _implicit(row: Row, chosen: Side, rejected: Side) -> Written:
    """Split off the turns that both sides have in common, as TRL does; the rest of each must be one answer."""
    pairs = enumerate(zip(chosen.turns, rejected.turns, strict=False))
    shorter = min(len(chosen.turns), len(rejected.turns))
    common = next((index for index, (turn, other) in pairs if turn != other), shorter)
    if common == shorter == len(chosen.turns) == len(rejected.turns) and common:
        raise _equal(rejected.field)
    rests = len(chosen.turns) - common, len(rejected.turns) - common
    if not common or rests != (1, 1):
        fault = "have no first turn in common" if not common else "differ in more than their last turn"
        reason = f"chosen and rejected {fault}, so the prompt is not known; write it as `prompt`"
        raise RowError(RowCode.ROW_PROMPTS_DIFFER, reason, rejected.field)
    sides = [Side(side.turns[common:], side.field) for side in (chosen, rejected)]
    return written_row(chosen.turns[:common], "chosen", row.get("tools"), sides, used=("tools", "chosen", "rejected"))


def written_row(prompt: list[Any], field: str, tools: Any, sides: Sequence[Side], used: tuple[str, ...]) -> Written:
    """Return the parts of a row.

    Raises:
        RowError: ``ROW_FIELD_MISSING``: it has no prompt.
    """
    if not prompt:
        raise RowError(RowCode.ROW_FIELD_MISSING, f"`{field}` is empty; it needs at least one turn", field)
    return Written(prompt, field, tools, tuple(sides), used)


def _check_answer(side: Side) -> None:
    """Check that a side is exactly one turn of the assistant.

    Raises:
        RowError: ``ROW_ANSWER_COUNT``, ``ROW_FIELD_TYPE``, ``ROW_ANSWER_ROLE``.
    """
    if len(side.turns) != 1:
        reason = f"{side.field} has {len(side.turns)} turns; an answer is exactly one turn of the assistant"
        raise RowError(RowCode.ROW_ANSWER_COUNT, reason, side.field)
    turn, place = side.turns[0], side.place
    if not isinstance(turn, dict):
        raise wrong_type(place, "an object")
    if turn.get("role") != _ASSISTANT:
        reason = f"{place}.role is {turn.get('role')!r:.60}; an answer is the assistant's turn"
        raise RowError(RowCode.ROW_ANSWER_ROLE, reason, f"{place}.role")


def _record(written: Written, side: Side, labels: Row, line: bytes) -> Record:
    """Return the chat of one side: earlier answers are only context, so their weight is 0.

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


def _located(error: RowError, written: Written, side: Side) -> RowError:
    """Return the error with the row's own names of the fields."""

    def place(match: re.Match[str]) -> str:
        index = int(match[1])
        return f"{written.prompt_field}[{index}]" if index < len(written.prompt) else side.place

    return RowError(error.code, _PLACE.sub(place, error.reason), _PLACE.sub(place, error.field))


def _equal(field: str) -> RowError:
    return RowError(RowCode.ROW_ANSWERS_EQUAL, "both answers are the same, so none is preferred", field)


def turns_in(value: Any, field: str) -> list[Any]:
    """Return the value of a field that holds turns.

    Raises:
        RowError: ``ROW_FIELD_TYPE``.
    """
    if not isinstance(value, list):
        raise wrong_type(field, "a list of turns")
    return value


def missing(name: str) -> RowError:
    """Return the error of a row without a field."""
    return RowError(RowCode.ROW_FIELD_MISSING, f"`{name}` is missing", name)


def wrong_type(field: str, expected: str) -> RowError:
    """Return the error of a field of the wrong type."""
    return RowError(RowCode.ROW_FIELD_TYPE, f"{field} must be {expected}", field)


def _without_answers(row: Row) -> RowError:
    if rates_its_answer(row):
        rated = "the row rates one answer, as for KTO, and has no second one"
        return RowError(RowCode.ROW_METHOD_MISMATCH, rated, form=RowForm.KTO)
    if recognise(row) is RowForm.RANKING:
        reason = "the row has a list of answers with scores; `mens data convert --as-pairs` makes a pair of it"
        return RowError(RowCode.ROW_FIELD_MISSING, reason, form=RowForm.RANKING)
    if form := is_foreign(row):
        reason = f"the row needs a preferred and a rejected answer; it is in {DESCRIPTIONS[form]}"
        return RowError(RowCode.ROW_METHOD_MISMATCH, reason, form=form)
    if recognise(row):
        reason = "the row needs a preferred and a rejected answer; this one is for supervised tuning"
        return RowError(RowCode.ROW_METHOD_MISMATCH, reason)
    reason = "the row needs `chosen` and `rejected`, or `preferred_output` and `non_preferred_output`"
    return RowError(RowCode.ROW_FIELD_MISSING, reason)

"""Rows of rated answers: a prompt, one answer, and whether the answer is good, in the forms that are in use.

{"prompt": [...], "completion": [...], "label": true}                         TRL's, conversational
{"prompt": "...", "completion": "...", "label": false}, optional "system"     plain
{"messages": [..., {"role": "assistant", ...}], "label": true}                chat: its last answer is rated
"""

from __future__ import annotations

from shared.datasets.forms.flags import flag_of
from shared.datasets.forms.recognition import DESCRIPTIONS, is_foreign, recognise
from shared.datasets.preferences.rows import (
    ANSWERS,
    ParsedPreference,
    PreferenceRecord,
    Row,
    Side,
    Written,
    decode_row,
    labels_of,
    missing,
    turns_in,
    written_row,
    wrong_type,
)
from shared.datasets.rows import Record, RowCode, RowError, TrainingRow, as_row

LABEL = "label"
_MESSAGES, _COMPLETIONS = "messages", ("completion", "response")


class RatedRecord(PreferenceRecord, frozen=True, gc=False, kw_only=True):
    """A chat whose last answer is rated."""

    is_good: bool


def parse_rated(line: bytes) -> ParsedPreference:
    """Decode and check one line.

    Raises:
        RowError: the line's fault.
    """
    row = decode_row(line)
    written = _read(row)
    [chat] = written.answered(labels_of(row), line)
    fields = {name: getattr(chat, name) for name in Record.__struct_fields__}
    rated = RatedRecord(**fields, is_good=row[LABEL])
    return ParsedPreference(rated, written.unused_keys(row), written.warning_of(chat) if rated.is_good else None)


def parse_rated_row(line: bytes, number: int) -> TrainingRow:
    """Return the chat of a rated answer.

    Raises:
        RowError: the line's fault.
    """
    return as_row(parse_rated(line).record, number)


def _read(row: Row) -> Written:
    """Find the parts of a row, which may be in any of the accepted forms.

    Raises:
        RowError: ``ROW_FIELD_MISSING``, ``ROW_FIELD_TYPE``, ``ROW_METHOD_MISMATCH``, ``ROW_LABEL_INVALID``.
    """
    form = recognise(row)
    if any(not row.keys().isdisjoint(names) for names in ANSWERS):
        reason = "the row has a preferred and a rejected answer, as for DPO, and no rated one"
        raise RowError(RowCode.ROW_METHOD_MISMATCH, reason, LABEL, form or "")
    if row.get(LABEL) is None:
        if other := is_foreign(row):
            reason = f"the row does not say whether its answer is good; it is in {DESCRIPTIONS[other]}"
            raise RowError(RowCode.ROW_METHOD_MISMATCH, reason, LABEL, other)
        if form:
            reason = "the row does not say whether its answer is good; it is a row for supervised tuning"
            raise RowError(RowCode.ROW_METHOD_MISMATCH, reason, LABEL)
        raise missing(LABEL)
    if not isinstance(row[LABEL], bool):
        reason = f"label is {row[LABEL]!r:.60}; it must be true or false"
        hint = "; `mens data convert --as-rated` converts it" if flag_of(row[LABEL]) is not None else ""
        raise RowError(RowCode.ROW_LABEL_INVALID, reason + hint, LABEL)
    completion = next((name for name in _COMPLETIONS if row.get(name) is not None), None)
    if completion is None and row.get(_MESSAGES) is not None:
        return _chat(row)
    if row.get("prompt") is None:
        raise missing("prompt")
    if completion is None:
        raise missing(_COMPLETIONS[0])
    used = ("prompt", completion, "tools", LABEL)
    if isinstance(row["prompt"], str) or isinstance(row[completion], str):
        return _plain(row, completion, (*used, "system"))
    sides = [Side(turns_in(row[completion], completion), completion)]
    return written_row(turns_in(row["prompt"], "prompt"), "prompt", row.get("tools"), sides, used)


def _chat(row: Row) -> Written:
    turns = turns_in(row[_MESSAGES], _MESSAGES)
    last = len(turns) - 1
    side = Side(turns[last:], _MESSAGES, max(0, last))
    return written_row(turns[:last], _MESSAGES, row.get("tools"), [side], (_MESSAGES, "tools", LABEL))


def _plain(row: Row, completion: str, used: tuple[str, ...]) -> Written:
    for name in ("prompt", completion):
        if not isinstance(row[name], str):
            raise wrong_type(name, "a string, because another part of the row is one")
    prompt = [{"role": "user", "content": row["prompt"]}]
    if row.get("system"):
        prompt.insert(0, {"role": "system", "content": row["system"]})
    side = Side([{"role": "assistant", "content": row[completion]}], completion)
    return written_row(prompt, "prompt", row.get("tools"), [side], used)

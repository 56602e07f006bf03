"""What can be wrong with one line of a training file, with a stable code for each."""

from __future__ import annotations

from enum import StrEnum


class RowCode(StrEnum):
    """Stable codes of bad rows; they stand in reports, in ``details.errors`` and in quarantine files."""

    ROW_BLANK = "ROW_BLANK"
    ROW_TOO_LONG = "ROW_TOO_LONG"
    ROW_NOT_UTF8 = "ROW_NOT_UTF8"
    ROW_NOT_JSON = "ROW_NOT_JSON"
    ROW_LONE_SURROGATE = "ROW_LONE_SURROGATE"
    ROW_TOO_DEEP = "ROW_TOO_DEEP"
    ROW_NOT_OBJECT = "ROW_NOT_OBJECT"
    ROW_FIELD_MISSING = "ROW_FIELD_MISSING"
    ROW_FIELD_TYPE = "ROW_FIELD_TYPE"
    ROW_NUMBER_RANGE = "ROW_NUMBER_RANGE"
    ROW_ROLE_UNKNOWN = "ROW_ROLE_UNKNOWN"
    ROW_CONTENT_EMPTY = "ROW_CONTENT_EMPTY"
    ROW_ANSWER_EMPTY = "ROW_ANSWER_EMPTY"
    ROW_LAST_TURN_NOT_ASSISTANT = "ROW_LAST_TURN_NOT_ASSISTANT"
    ROW_WEIGHT_INVALID = "ROW_WEIGHT_INVALID"
    ROW_NOTHING_TO_LEARN = "ROW_NOTHING_TO_LEARN"
    ROW_TOOL_INVALID = "ROW_TOOL_INVALID"
    ROW_TOOL_CALL_INVALID = "ROW_TOOL_CALL_INVALID"
    ROW_RATING_RANGE = "ROW_RATING_RANGE"
    ROW_DIFFICULTY_RANGE = "ROW_DIFFICULTY_RANGE"
    ROW_RESPONSE_MODE_UNKNOWN = "ROW_RESPONSE_MODE_UNKNOWN"
    ROW_SPAN_OUT_OF_RANGE = "ROW_SPAN_OUT_OF_RANGE"


class RowError(ValueError):
    """One line is not a training row.

    Args:
        code: the stable code.
        reason: what is wrong, in words for the person who wrote the file.
        field: path of the field, e.g. ``messages[0].role``; empty when the whole line is meant.
    """

    def __init__(self, code: RowCode, reason: str, field: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.field = field

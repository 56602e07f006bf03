"""Conversion of the original system's record formats into training rows, and the lane of a row."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from shared.datasets.rows import RowCode, RowError

TOOL_MARK = "[vox_tool_supervision]"
"""First word of the prompts of tool traces, as in the original system's rows."""
DEFAULT_LANE = "codegen"
"""Lane of a row that has neither a lane nor a category that implies one."""
ORIGINAL_PREFIX = "vox_"
_LANES = {
    "tool_trace": "tooling",
    "speech": "speech",
    "asr": "speech",
    "documentation": "docs_qa",
}
"""Lane by a word in the category."""
_CONFIRMED = {"confirmed_true": 5, "likely_true": 4, "unverified": 3, "likely_false": 2, "confirmed_false": 1}
"""Rating of a review row by its correctness state."""


class RecordFormat(StrEnum):
    """Formats of lines that are not training rows, or of training rows whose category the format determines."""

    TOOL_TRACE = "tool_trace"
    ASR_REFINE = "asr_refine"
    SPEECH_TO_CODE = "speech_to_code"
    WORKFLOW_TRACE = "workflow_trace"
    REVIEW = "review"
    DPO = "dpo"


class ToolTrace(msgspec.Struct):
    """A call of a tool that an agent made."""

    task_prompt: str
    tool_name: str
    arguments_json: Any = None
    result_json: Any = None
    success: bool = True
    followup_text: str | None = None
    session_id: str | None = None


class ReviewRow(msgspec.Struct):
    """A finding of a code review, as a row."""

    prompt: str
    response: str
    category: str
    correctness_state: str


def lane_of(lane: str | None, category: str | None) -> str:
    """Return the lane of a row without the original's prefix."""
    if lane:
        return lane.removeprefix(ORIGINAL_PREFIX)
    return known_lane(category) or DEFAULT_LANE


@lru_cache(maxsize=1024)
def known_lane(category: str | None) -> str | None:
    """Return the lane that a category implies; None if it implies none."""
    words = (category or "").lower()
    return next((lane for word, lane in _LANES.items() if word in words), None)


def convert(line: bytes, form: RecordFormat) -> bytes:
    """Return a line of a format as the line of a training row.

    Raises:
        RowError: ``ROW_NOT_JSON``, ``ROW_FIELD_TYPE``, ``ROW_FIELD_MISSING``.
    """
    try:
        row = _CONVERTERS.get(form, _labelled)(line, form)
    except msgspec.ValidationError as error:
        code = RowCode.ROW_FIELD_MISSING if "missing required" in str(error) else RowCode.ROW_FIELD_TYPE
        raise RowError(code, f"the line is not a record of {form}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RowError(RowCode.ROW_NOT_JSON, f"the line is not JSON: {error}") from None
    return msgspec.json.encode(row)


def _tool_trace(line: bytes, form: RecordFormat) -> dict[str, Any]:
    trace = _decode_trace(line)
    call = {
        "tool_name": trace.tool_name,
        "arguments": _value(trace.arguments_json),
        "result": _value(trace.result_json),
        "success": trace.success,
    }
    return {
        "prompt": f"{TOOL_MARK} {trace.task_prompt}",
        "response": trace.followup_text or msgspec.json.encode(call).decode(),
        "category": form.value,
        "lane": "tooling",
        "origin": "agent",
    }


def _value(field: Any) -> Any:
    """Return the decoded value of a field that holds JSON text; any other value is returned unchanged."""
    try:
        return msgspec.json.decode(field) if isinstance(field, str) else field
    except msgspec.DecodeError:
        return field


def _review(line: bytes, _form: RecordFormat) -> dict[str, Any]:
    row = _decode_review(line)
    rating = _CONFIRMED.get(row.correctness_state)
    labels = {} if rating is None else {"rating": rating}
    return {"prompt": row.prompt, "response": row.response, "category": row.category, **labels}


def _labelled(line: bytes, form: RecordFormat) -> dict[str, Any]:
    """Return a training row, with the category and the lane of its format if it has none."""
    row = _decode_object(line)
    if form is RecordFormat.DPO:
        return row
    row.setdefault("category", form.value)
    row.setdefault("lane", "speech" if form is not RecordFormat.WORKFLOW_TRACE else "tooling")
    row.setdefault("origin", "agent" if form is RecordFormat.WORKFLOW_TRACE else "human")
    return row


_decode_trace = msgspec.json.Decoder(ToolTrace).decode
_decode_review = msgspec.json.Decoder(ReviewRow).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_CONVERTERS: dict[RecordFormat, Callable[[bytes, RecordFormat], dict[str, Any]]] = {
    RecordFormat.TOOL_TRACE: _tool_trace,
    RecordFormat.REVIEW: _review,
}

"""Reads the log of a chat request: the request's turns and tools, and the first answer of its response."""

from __future__ import annotations

from typing import Any

from cli.conversion.outcomes import Dropped, DropReason, Row
from cli.conversion.reading import EMPTY, Reading
from shared.datasets.forms.recognition import logged_exchange
from shared.datasets.rows import RowCode

CUT = ("length", "content_filter")
"""Reasons for which an answer ended before the model had finished it."""


def turns_of_log(reading: Reading) -> list[Row]:
    """Return the turns of a logged request and its response; the row gets the request's tools.

    Raises:
        Dropped: the answer was cut or is missing.
    """
    exchange = logged_exchange(reading.row)
    if exchange is None:
        raise Dropped(RowCode.ROW_FIELD_MISSING)
    (request_key, request), (response_key, response) = exchange
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices:  # a request that failed
        raise Dropped(DropReason.NO_ANSWER)
    choice, *others = _objects(choices)
    if choice.get("finish_reason") in CUT:
        raise Dropped(DropReason.ANSWER_CUT)
    if not request["messages"]:
        raise Dropped(RowCode.ROW_FIELD_MISSING)
    reading.used |= {request_key, response_key}
    read_keys = {"messages"} | {key for key in ("tools", "functions") if reading.row.get(key) in EMPTY}
    reading.leave_out(request_key, request, read_keys)
    reading.leave_out(response_key, {"choices[1]": others}, ())
    reading.row |= {key: request[key] for key in read_keys - {"messages"} if key in request}
    turns = [*_objects(request["messages"]), *_objects([choice.get("message")])]
    # Keys of a response's message that a plain answer leaves empty, e.g. `annotations`.
    answer = {key: value for key, value in turns[-1].items() if key == "content" or value not in EMPTY}
    return [*turns[:-1], {"role": "assistant"} | answer]


def _objects(value: Any) -> list[Row]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Dropped(RowCode.ROW_FIELD_TYPE)
    return value

"""Reads files of recorded answers and of graders; invalid entries are refused with their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from openai_migration.archive.pages import Item
from openai_migration.archive.shutdown_dates import parse_name
from openai_migration.prompts import PROMPT_FIELDS, to_request
from openai_migration.record import GREEDY
from shared.counted_nouns import counted
from shared.errors import Code, InvalidRequest
from shared.graders.types import GRADER

SAMPLING = ("temperature", "seed", "top_p")
BOUNDS = ("max_completion_tokens", "max_tokens")
OF_A_COMPLETION = ("id", "created", "system_fingerprint", "usage", "choices")
SHOWN_FAULTS = 10


class LineFault(ValueError):
    """The reason why a line is not a recorded answer."""


class RecordedAnswer(msgspec.Struct, frozen=True):
    """A parsed line of an answers file.

    Attributes:
        item: the value of ``item`` in graders.
        scores: scores of OpenAI's graders, by the grader's name.
    """

    model: str
    request: dict[str, Any]
    sampling: dict[str, Any]
    response: dict[str, Any]
    item: dict[str, Any]
    scores: dict[str, float]


def read_answers_file(path: Path, model: str) -> list[RecordedAnswer]:
    """Read the answers of a JSONL file, whose lines docs/migration.md describes.

    Args:
        model: the tuned model; answers of its base are a control.

    Raises:
        InvalidRequest: ``ANSWER_LINE_INVALID``: lines are invalid, each with its number and reason.
    """
    answers: list[RecordedAnswer] = []
    faults: list[tuple[int, str]] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                answers.append(_read_answer(line, model))
            except LineFault as error:
                faults.append((number, str(error)))
    if faults or not answers:
        shown = "; ".join(f"line {number}: {why}" for number, why in faults[:SHOWN_FAULTS])
        more = f"; and {counted(len(faults) - SHOWN_FAULTS, 'more line')}" if len(faults) > SHOWN_FAULTS else ""
        raise InvalidRequest(
            Code.ANSWER_LINE_INVALID,
            f"{path}: {shown or 'the file is empty'}{more}.",
            remedy='A line is {"messages": […], "choices": […]}, or {"messages": […], "answer": "…"}; docs/migration.md has more.',
            param="answers",
            details={"errors": [{"line": number, "reason": why} for number, why in faults]},
        )
    return answers


def _read_answer(line: bytes, model: str) -> RecordedAnswer:
    """Parse an answer, or return a `LineFault` that says why the line is not an answer."""
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineFault(f"not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise LineFault("not a JSON object")
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(turn, dict) for turn in messages):
        raise LineFault("`messages` is missing, or not a list of messages")
    response = _response(row)
    if messages[-1].get("role") == "assistant":
        raise LineFault("`messages` ends with an answer; it must contain only the request")
    named = row.get("model") or model
    if named not in {model, parse_name(model).base}:
        raise LineFault(f"`model` is {named!r}, neither {model} nor its base")
    item, scores = row.get("item") or {}, row.get("scores") or {}
    if not isinstance(item, dict):
        raise LineFault("`item` is not an object")
    if not isinstance(scores, dict) or not all(_is_number(score) for score in scores.values()):
        raise LineFault("`scores` is not an object of numbers")
    # Only the request: `input` and `body` of a line are not part of the form.
    request = to_request({name: row[name] for name in ("messages", *PROMPT_FIELDS) if name in row})
    if request is None:
        raise LineFault("`messages` has no user turn")
    return RecordedAnswer(named, request, _sampling(row), response, item, scores)


def _response(row: dict[str, Any]) -> dict[str, Any]:
    """Return the chat completion of a line; a `LineFault` gives the reason why it has none."""
    choices, answer = row.get("choices"), row.get("answer")
    if isinstance(answer, str) and choices is None:
        choices = [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": None}]
        return {"object": "chat.completion", "choices": choices}
    if choices is None:
        raise LineFault(
            "`choices` or `answer` (a string) is missing; the last turn of a training row is its label, not the "
            "model's answer"
        )
    first = choices[0] if isinstance(choices, list) and choices else None
    if answer is not None or not isinstance(first, dict) or not isinstance(first.get("message"), dict):
        raise LineFault("`choices` is not a list of {message}, or `answer` is given as well")
    message = first["message"]
    if (
        not isinstance(message.get("content"), str)
        and not message.get("tool_calls")
        and not message.get("function_call")
    ):
        raise LineFault("`choices[0].message` has neither text nor tool calls")
    return {"object": "chat.completion"} | {name: row[name] for name in OF_A_COMPLETION if name in row}


def _sampling(row: dict[str, Any]) -> dict[str, Any]:
    """Return the line's sampling settings; the defaults are temperature 0 and the seed of `record`."""
    settings = {name: row[name] for name in SAMPLING if _is_number(row.get(name))}
    bound = next((row[name] for name in BOUNDS if _is_number(row.get(name))), None)
    return GREEDY | settings | ({"max_completion_tokens": bound} if bound else {})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_graders_file(path: Path) -> list[Item]:
    """Read OpenAI's graders from a file: one object, a list of them, an eval with ``testing_criteria``, or one per
    line.

    Raises:
        InvalidRequest: ``GRADER_INVALID``: an entry is not a grader, with its line or place.
    """
    content = path.read_bytes()
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        placed = [
            (f"line {number}", _decoded(path, number, line))
            for number, line in enumerate(content.splitlines(), start=1)
            if line.strip()
        ]
    else:
        criteria = value.get("testing_criteria", value) if isinstance(value, dict) else value
        criteria = criteria if isinstance(criteria, list) else [criteria]
        placed = [(f"grader {number}", criterion) for number, criterion in enumerate(criteria, start=1)]
    if not placed:
        raise _bad_grader(f"{path} has no grader.")
    for place, grader in placed:
        if not isinstance(grader, dict):
            raise _bad_grader(f"{path}, {place}: not a JSON object.")
        try:
            GRADER.validate_python(
                {name: setting for name, setting in grader.items() if name != "id" and setting is not None}
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise _bad_grader(f"{path}, {place}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
    return [grader for _, grader in placed]


def _decoded(path: Path, number: int, line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad_grader(f"{path}, line {number}: not valid JSON ({error}).") from None


def _bad_grader(message: str) -> InvalidRequest:
    remedy = "Give graders in OpenAI's form, e.g. a job's `grader` or an eval's `testing_criteria`."
    return InvalidRequest(Code.GRADER_INVALID, message, remedy=remedy, param="graders")

"""``--check``: graders by short names, in OpenAI's form. Pure except for reading a schema's file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from shared.errors import Code, InvalidRequest
from shared.evaluation.types import Criterion
from shared.graders.types import Metric

CRITERION: TypeAdapter[Criterion] = TypeAdapter(Criterion)
ANSWER, EXPECTED = "{{ sample.output_text }}", "{{ item.expected }}"
OPERATIONS = {"exact": "eq", "contains": "like", "icontains": "ilike"}
METRICS = get_args(Metric)
HELP = (
    "exact, contains, icontains (the answer and the row's `expected`); regex=PATTERN; json; json_schema=FILE; "
    "compiles=LANGUAGE, anti_stub=LANGUAGE (python, json, sql, or a checker that is installed); "
    f"{', '.join(METRICS)}, each with =LEAST, e.g. rouge_l=0.5; judge=MODEL (a model compares answer and `expected`); "
    "better=MODEL (with --against: a model says which of the two answers is better)."
)
JUDGE = (
    "You judge an answer. Compare it with the reference: is it as correct and as complete? Differences of wording do not matter.\n\n"
    "Reference:\n{{ item.expected }}\n\nAnswer:\n{{ sample.output_text }}"
)

BETTER = (
    "You judge two answers to the same question. Which is better? Do not let their order or their length decide.\n\n"
    "Question:\n{{ item.messages }}\n\nFirst answer:\n{{ sample.output_text }}\n\nSecond answer:\n{{ sample.other.output_text }}"
)
MODEL_CHECKS = {"judge": (JUDGE, ["correct", "incorrect"]), "better": (BETTER, ["first", "second", "equal"])}
"""The prompt of each check by a model, and its labels; an answer with the first label passes."""


def to_criterion(text: str) -> dict[str, Any]:
    """Return the grader for a check, in the form that is sent; its name is the check's.

    Raises:
        InvalidRequest: ``GRADER_INVALID``: an unknown check, or its value is missing or wrong.
    """
    name, equals, value = text.partition("=")
    sides = {"name": name, "input": ANSWER, "reference": EXPECTED}
    grader: dict[str, Any] | None = None
    if name in OPERATIONS and not equals:
        grader = {"type": "string_check", **sides, "operation": OPERATIONS[name]}
    elif name in METRICS and re.fullmatch(r"0|1|1\.0+|0?\.\d+", value):
        grader = {"type": "text_similarity", **sides, "evaluation_metric": name, "pass_threshold": float(value)}
    elif name in MODEL_CHECKS and value:
        prompt, labels = MODEL_CHECKS[name]
        grader = {
            "type": "label_model",
            "name": name,
            "model": value,
            "input": [{"role": "user", "content": prompt}],
            "labels": labels,
            "passing_labels": labels[:1],
        }
    elif check := _short_form(name, value):
        # A stock client reads it as a python grader; with the block no code runs.
        grader = {"type": "python", "name": name, "source": "", "mens": check}
    if grader is None:
        raise InvalidRequest(
            Code.GRADER_INVALID, f"{text!r} is not a check.", remedy=f"The checks: {HELP}", param="check"
        )
    return _checked(grader)


def _short_form(name: str, value: str) -> dict[str, Any]:
    """Return a check in the block ``mens``; empty for another name, or without its value."""
    if name == "regex" and value:
        return {"check": "regex", "pattern": value}
    if name in ("compiles", "anti_stub") and value:
        return {"check": name, "language": value}
    if name == "json_schema" and value:
        return {"check": "json_schema", "json_schema": _read_schema(Path(value))}
    return {"check": "json_schema"} if name == "json" and not value else {}


def read_grader(path: Path) -> list[dict[str, Any]]:
    """Read the graders of a JSON file: one, or a list of them.

    Raises:
        InvalidRequest: ``GRADER_INVALID``.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _invalid(f"{path} is not valid JSON: {error}.") from error
    return [_checked(grader) for grader in (content if isinstance(content, list) else [content])]


def _read_schema(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _invalid(f"{path} is not a valid JSON Schema: {error}.") from error
    if not isinstance(schema, dict):
        raise _invalid(f"{path} does not contain a JSON object.")
    return schema


def _checked(grader: Any) -> dict[str, Any]:
    try:
        return CRITERION.validate_python(grader).model_dump(mode="json", exclude_none=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise _invalid(f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(Code.GRADER_INVALID, message, remedy="docs/evaluation.md has the graders.", param="check")

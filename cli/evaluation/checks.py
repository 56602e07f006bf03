"""``--check``: graders by short names, as OpenAI's graders. Pure but for reading a schema's file."""

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
METRICS = [metric for metric in get_args(Metric) if metric != "cosine"]
HELP = (
    "exact, contains, icontains (the answer and the row's `expected`); regex=PATTERN; json; json_schema=FILE; "
    f"{', '.join(METRICS)}, each with =LEAST, e.g. rouge_l=0.5; judge=MODEL (a model compares answer and `expected`)."
)
JUDGE = (
    "You judge an answer. Compare it with the reference: is it as correct and as complete? Differences of wording do not matter.\n\n"
    "Reference:\n{{ item.expected }}\n\nAnswer:\n{{ sample.output_text }}"
)


def to_criterion(text: str) -> dict[str, Any]:
    """The grader that a check stands for, as it is sent; its name is the check's.

    Raises:
        InvalidRequest: ``GRADER_INVALID``: there is no such check, or its value is missing or wrong.
    """
    name, given, value = text.partition("=")
    if name in OPERATIONS and not given:
        return _checked(
            {
                "type": "string_check",
                "name": name,
                "input": ANSWER,
                "reference": EXPECTED,
                "operation": OPERATIONS[name],
            }
        )
    if name == "regex" and value:
        return _checked(_short_form(name, {"check": "regex", "pattern": value}))
    if name == "json" and not given:
        return _checked(_short_form(name, {"check": "json_schema"}))
    if name == "json_schema" and value:
        return _checked(_short_form(name, {"check": "json_schema", "json_schema": _read_schema(Path(value))}))
    if name in METRICS and re.fullmatch(r"(0|1|0?\.\d+|1\.0+|0\.\d+)", value):
        similarity = {"type": "text_similarity", "name": name, "input": ANSWER, "reference": EXPECTED}
        return _checked(similarity | {"evaluation_metric": name, "pass_threshold": float(value)})
    if name == "judge" and value:
        judge = {"type": "label_model", "name": "judge", "model": value, "input": [{"role": "user", "content": JUDGE}]}
        return _checked(judge | {"labels": ["correct", "incorrect"], "passing_labels": ["correct"]})
    raise InvalidRequest(Code.GRADER_INVALID, f"{text!r} is no check.", remedy=f"The checks: {HELP}", param="check")


def read_grader(path: Path) -> list[dict[str, Any]]:
    """The graders of a JSON file: one, or a list of them.

    Raises:
        InvalidRequest: ``GRADER_INVALID``.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _invalid(f"{path} is no JSON: {error}.") from error
    return [_checked(grader) for grader in (found if isinstance(found, list) else [found])]


def _short_form(name: str, check: dict[str, Any]) -> dict[str, Any]:
    # A stock client reads it as a python grader; with the block no code runs.
    return {"type": "python", "name": name, "source": "", "mens": check}


def _read_schema(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _invalid(f"{path} is no JSON Schema: {error}.") from error
    if not isinstance(schema, dict):
        raise _invalid(f"{path} holds no object.")
    return schema


def _checked(grader: Any) -> dict[str, Any]:
    try:
        return CRITERION.validate_python(grader).model_dump(mode="json", exclude_none=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise _invalid(f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(Code.GRADER_INVALID, message, remedy="docs/evaluation.md has the graders.", param="check")

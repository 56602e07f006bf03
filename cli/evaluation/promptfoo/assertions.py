"""Which of promptfoo's assertions correspond to which grader, both ways. Pure.

An assertion belongs to one test, a grader to the whole eval. So values that differ from test to test (the value to
compare with) go into the item, and tests of one form share a grader; values that cannot vary (a pattern, a schema)
belong to the form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ANSWER = "{{ sample.output_text }}"
OPERATIONS = {"equals": "eq", "not-equals": "ne", "contains": "like", "icontains": "ilike"}
SIMILARITIES = {"bleu": ("bleu", 0.5), "gleu": ("gleu", 0.5), "meteor": ("meteor", 0.5), "rouge-n": ("rouge_1", 0.75)}
"""By promptfoo's name: ours, and promptfoo's default threshold. Its settings of each are its own."""
UNREAD = ("threshold", "weight", "provider", "rubricPrompt", "transform", "contextTransform", "config")


class NoCounterpart(Exception):
    """An assertion has no grader as its counterpart, or a grader no assertion."""


@dataclass(frozen=True)
class Form:
    """Properties that tests must share to be judged by one grader.

    Attributes:
        key: equal for equal forms.
        grader: grader without its name; it refers to the item as ``item.PLACE``, which is replaced later.
        value: this test's value, which goes into its item; None: the form has everything.
    """

    key: str
    grader: dict[str, Any]
    value: str | None = None


PLACE = "{{ item.%s }}"


def to_form(assertion: Mapping[str, Any]) -> Form:
    """Return the form of an assertion.

    Args:
        assertion: its value's placeholders are filled in already.

    Raises:
        NoCounterpart: the assertion has no counterpart here.
    """
    kind, value = str(assertion.get("type")), assertion.get("value")
    _refuse_unread(kind, assertion)
    if kind in OPERATIONS or kind in SIMILARITIES:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise NoCounterpart("its value is not a string")
        return _compared(kind, str(value), assertion.get("threshold"))
    check: dict[str, Any]
    if kind == "is-json" and isinstance(value, dict | None):
        check = {"check": "json_schema"} | ({} if value is None else {"json_schema": value})
    elif pattern := _pattern(kind, value):
        check = {"check": "regex", "pattern": pattern}
    else:
        raise NoCounterpart("Mens has no such grader")
    return Form(json.dumps(check, sort_keys=True), {"type": "python", "source": "", "mens": check})


def _refuse_unread(kind: str, assertion: Mapping[str, Any]) -> None:
    """Refuse an assertion with settings that would be ignored, since they change its meaning."""
    value = assertion.get("value")
    if isinstance(value, str) and (found := re.match(r"file://|python:|package:", value)):
        raise NoCounterpart(f"its value begins with {found[0]}, and files or code of a configuration are not read")
    for key in UNREAD:
        given = assertion.get(key)
        if given is None or (key, given) == ("weight", 1) or (key == "threshold" and kind in SIMILARITIES):
            continue
        raise NoCounterpart(f"its {key} would be ignored")


def _pattern(kind: str, value: Any) -> str:
    """Return the regular expression of an assertion; empty for an assertion without one."""
    if kind == "regex" and isinstance(value, str):
        return value
    if kind == "starts-with" and isinstance(value, str):
        return rf"\A{re.escape(value)}"
    if kind == "contains-any" and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "|".join(map(re.escape, value))
    return ""


def _compared(kind: str, value: str, threshold: Any) -> Form:
    sides = {"input": ANSWER, "reference": PLACE}
    if kind in OPERATIONS:
        return Form(kind, {"type": "string_check", **sides, "operation": OPERATIONS[kind]}, value)
    metric, default = SIMILARITIES[kind]
    least = float(default if threshold is None else threshold)
    grader = {"type": "text_similarity", **sides, "evaluation_metric": metric, "pass_threshold": least}
    return Form(f"{kind} {least}", grader, value)


def to_assertion(grader: Mapping[str, Any]) -> dict[str, Any]:
    """Return the assertion that corresponds to a grader.

    Raises:
        NoCounterpart: promptfoo has no counterpart.
    """
    if grader["type"] == "python":
        return _assertion_of_check(grader.get("mens") or {})
    if grader["type"] not in ("string_check", "text_similarity"):
        raise NoCounterpart("promptfoo has no such assertion")
    if grader["input"] != ANSWER or "sample." in grader["reference"]:
        raise NoCounterpart("it does not compare the answer with a field of the item")
    if grader["type"] == "string_check":
        kind = next(kind for kind, operation in OPERATIONS.items() if operation == grader["operation"])
        return {"type": kind, "value": grader["reference"]}
    metric = grader["evaluation_metric"]
    for kind, (ours, _) in SIMILARITIES.items():
        if ours == metric:
            return {"type": kind, "value": grader["reference"], "threshold": grader["pass_threshold"]}
    raise NoCounterpart(f"promptfoo has no {metric}")


def _assertion_of_check(check: Mapping[str, Any]) -> dict[str, Any]:
    if check.get("input", ANSWER) == ANSWER and check.get("check") == "regex":
        return {"type": "regex", "value": check["pattern"]}
    if check.get("input", ANSWER) == ANSWER and check.get("check") == "json_schema":
        schema = check.get("json_schema", True)
        return {"type": "is-json"} | ({"value": schema} if isinstance(schema, dict) else {})
    raise NoCounterpart("promptfoo has no such assertion")

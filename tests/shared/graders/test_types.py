"""Graders as clients send them: OpenAI's examples are accepted unchanged, and an invalid one is refused with its field."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.graders import (
    LabelModelGrader,
    PythonGrader,
    ScoreModelGrader,
    StringCheckGrader,
    TextSimilarityGrader,
)
from pydantic import ValidationError

from shared.graders.types import GRADER

EXACT = {
    "type": "string_check",
    "name": "exact",
    "input": "{{sample.output_text}}",
    "reference": "{{ item.a }}",
    "operation": "eq",
}
SIMILAR = {**EXACT, "type": "text_similarity", "name": "alike", "evaluation_metric": "fuzzy_match"}
del SIMILAR["operation"]
MESSAGES = [
    {"role": "developer", "content": "Judge."},
    {"role": "user", "content": {"type": "input_text", "text": "{{ item.q }}"}},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "{{ sample.output_text }}"}]},
]
SCORE = {
    "type": "score_model",
    "name": "judge",
    "input": MESSAGES,
    "model": "m",
    "range": [0, 10],
    "sampling_params": {"seed": 1, "max_completions_tokens": 50},
}
LABEL = {
    "type": "label_model",
    "name": "tone",
    "input": MESSAGES,
    "model": "m",
    "labels": ["good", "bad"],
    "passing_labels": ["good"],
}
CODE = {"type": "python", "name": "code", "source": "def grade(sample, item): return 1.0", "image_tag": "2025-05-08"}
MULTI = {
    "type": "multi",
    "name": "both",
    "graders": {"exact": EXACT, "alike": SIMILAR},
    "calculate_output": "exact * .5 + alike * .5",
}


@pytest.mark.parametrize("grader", [EXACT, SIMILAR, SCORE, LABEL, CODE, MULTI], ids=lambda grader: grader["type"])
def test_a_grader_comes_back_as_it_was_sent(grader: dict[str, Any]) -> None:
    answered = GRADER.validate_python(grader).model_dump(mode="json", exclude_unset=True)
    assert answered == grader


def test_openais_own_types_take_what_is_answered() -> None:
    for kind, grader in (
        (StringCheckGrader, EXACT),
        (TextSimilarityGrader, SIMILAR),
        (ScoreModelGrader, SCORE),
        (LabelModelGrader, {**LABEL, "input": [{"role": "user", "content": "x"}]}),
        (PythonGrader, CODE),
    ):
        kind.model_validate(GRADER.validate_python(grader).model_dump(mode="json", exclude_unset=True), strict=False)


def test_a_name_that_is_left_out_is_the_type() -> None:
    assert (
        GRADER.validate_python({name: value for name, value in EXACT.items() if name != "name"}).name == "string_check"
    )


@pytest.mark.parametrize(
    ("grader", "place", "words"),
    [
        ({**EXACT, "operation": "neq"}, ("string_check", "operation"), "'eq', 'ne', 'like' or 'ilike'"),
        ({**EXACT, "input": "{{ sample.output"}, ("string_check", "input"), "not closed"),
        ({**EXACT, "treshold": 1}, ("string_check", "treshold"), "not permitted"),
        ({**EXACT, "type": "exact"}, (), "does not match any of the expected tags"),
        ({**SIMILAR, "evaluation_metric": "rouge_6"}, ("text_similarity", "evaluation_metric"), "rouge_1"),
        ({**SCORE, "range": [1, 1]}, ("score_model",), "the second number of range must be larger than the first"),
        (
            {**SCORE, "input": [{"role": "user", "content": {"type": "input_video", "url": "x"}}]},
            ("score_model", "input", 0, "content"),
            "",
        ),
        ({**LABEL, "passing_labels": ["best"]}, ("label_model",), "has best, which labels does not list"),
        ({**CODE, "source": "x" * 256_001}, ("python", "source"), "at most 256000"),
        ({**MULTI, "calculate_output": "exact + other"}, ("multi",), "names other, which graders does not list"),
        ({**MULTI, "calculate_output": "exact +"}, ("multi",), "ends too early"),
        ({**MULTI, "graders": {"min": EXACT}, "calculate_output": "1"}, ("multi",), "is a function of formulas"),
        (
            {**MULTI, "graders": {"inner": MULTI}},
            ("multi", "graders", "inner"),
            "does not match any of the expected tags",
        ),
        ({**MULTI, "graders": {"a-b": EXACT}}, ("multi", "graders", "a-b", "[key]"), "match pattern"),
    ],
)
def test_what_is_wrong_is_named(grader: dict[str, Any], place: tuple[str | int, ...], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GRADER.validate_python(grader)
    first = caught.value.errors()[0]
    assert first["loc"][: len(place)] == place
    assert words in first["msg"]

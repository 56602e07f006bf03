"""Scores of answers: each grader's rule, its score for a faulty answer, and refusals."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Code, InvalidRequest
from shared.graders.checks import parse_json
from shared.graders.grading import check_runnable, grade, is_passed, make_sample
from shared.graders.types import GRADER, Grader

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "find", "arguments": '{"id": 7, "deep": {"b": 1, "a": 2}}'},
}
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
    },
}


def make(kind: str, **fields: Any) -> Grader:
    texts = {"input": "{{ sample.output_text }}", "reference": "{{ item.a }}"}
    defaults: dict[str, dict[str, Any]] = {
        "string_check": {**texts, "operation": "eq"},
        "text_similarity": {**texts, "evaluation_metric": "rouge_l"},
        "score_model": {
            "input": [{"role": "user", "content": "{{ item.a }}? {{ sample.output_text }}"}],
            "model": "judge",
        },
        "label_model": {
            "input": [{"role": "user", "content": "x"}],
            "model": "judge",
            "labels": ["good", "bad"],
            "passing_labels": ["good"],
        },
        "python": {"source": "def grade(sample, item): return 1.0"},
    }
    return GRADER.validate_python({"type": kind, **defaults.get(kind, {}), **fields})


def check(**fields: Any) -> Grader:
    return make("python", mens=fields)


def score(grader: Grader, text: str, item: dict[str, Any] | None = None, calls: list[Any] | None = None) -> float:
    return grade(grader, item or {"a": "Yes"}, make_sample(text, calls or [])).score


@pytest.mark.parametrize(
    ("operation", "text", "expected"),
    [
        ("eq", "Yes", 1),
        ("eq", "yes", 0),
        ("ne", "Yes", 0),
        ("ne", "No", 1),
        ("like", "Yes, sir", 1),
        ("like", "yes, sir", 0),
        ("ilike", "oh YES", 1),
        ("ilike", "no", 0),
    ],
)
def test_string_check(operation: str, text: str, expected: float) -> None:
    assert score(make("string_check", operation=operation), text) == expected


@given(st.text(), st.text())
def test_eq_and_ne_are_opposites_and_eq_is_like(text: str, reference: str) -> None:
    results = {
        name: score(make("string_check", operation=name), text, {"a": reference})
        for name in ("eq", "ne", "like", "ilike")
    }
    assert results["eq"] + results["ne"] == 1
    assert results["eq"] <= results["like"] <= results["ilike"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"id": 1}', 1),
        (' {"id": 1} ', 1),
        ('{"id": "1"}', 0),
        ('{"id": NaN}', 0),
        ("```json\n{}\n```", 0),
        ("", 0),
        ("[" * 100_000, 0),
    ],
)
def test_json_schema(text: str, expected: float) -> None:
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
    assert score(check(check="json_schema", json_schema=schema), text) == expected


def test_a_schema_leads_to_no_other_document_and_bad_ones_are_refused() -> None:
    for schema in ({"$ref": "http://127.0.0.1:9/x"}, {"$ref": "file:///etc/passwd"}, {"type": 5}):
        with pytest.raises(InvalidRequest) as caught:
            check_runnable(check(check="json_schema", json_schema=schema))
        assert caught.value.code == Code.GRADER_INVALID


def test_hostile_expressions_are_stopped() -> None:
    began = time.process_time()
    with pytest.raises(InvalidRequest) as caught:
        score(check(check="regex", pattern="^(a|aa)+$"), "a" * 60 + "b")
    assert caught.value.code == Code.GRADER_TIMEOUT
    # The schema's own engine needs no clock for this one.
    score(check(check="json_schema", json_schema={"pattern": "^(a+)+$"}), json.dumps("a" * 60 + "b"))
    assert time.process_time() - began < 5
    assert score(check(check="regex", pattern=r"(?i)order \d+"), "Your ORDER 12.") == 1
    with pytest.raises(InvalidRequest, match="is not a valid expression"):
        check_runnable(check(check="regex", pattern="("))


@pytest.mark.parametrize(
    ("fields", "calls", "expected"),
    [
        ({"tools": [TOOL]}, [CALL], 1),
        ({"tools": [TOOL]}, [], 0),
        ({"tools": [TOOL], "expected": []}, [], 1),
        ({"tools": [TOOL]}, [{**CALL, "function": {"name": "other", "arguments": "{}"}}], 0),
        ({"tools": [TOOL]}, [{**CALL, "function": {"name": "find", "arguments": '{"id": "7"}'}}], 0),
        ({"tools": [TOOL]}, [{**CALL, "function": {"name": "find", "arguments": '{"id": 7'}}], 0),
        ({"tools": [TOOL]}, ["no call"], 0),
        ({"expected": [{"name": "find"}]}, [CALL], 1),
        ({"expected": [{"name": "find", "arguments": {"deep": {"a": 2, "b": 1}, "id": 7}}]}, [CALL], 1),
        (
            {"expected": [{"name": "find", "arguments": {"id": True}}]},
            [{**CALL, "function": {"name": "find", "arguments": '{"id": 1}'}}],
            0,
        ),
        ({"expected": [{"name": "find"}, {"name": "find"}]}, [CALL], 0),
    ],
)
def test_tool_calls(fields: dict[str, Any], calls: list[Any], expected: float) -> None:
    assert score(check(check="tool_calls", **fields), "", calls=calls) == expected


def completion(result: object, **message: Any) -> dict[str, Any]:
    content = json.dumps({"steps": [], "result": result})
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": None}
    return {"choices": [{"message": {"role": "assistant", "content": content, **message}}], "usage": usage}


@pytest.mark.parametrize(
    ("grader", "result", "expected"),
    [
        (make("score_model"), 0.5, 0.5),
        (make("score_model"), 7, 1),
        (make("score_model", range=[-1, 10]), -3, -1),
        (make("label_model"), "good", 1),
        (make("label_model"), "bad", 0),
    ],
)
def test_models_that_judge(grader: Grader, result: object, expected: float) -> None:
    given = grade(grader, {"a": "x"}, make_sample("y"), lambda _: completion(result))
    assert given.score == expected
    assert given.usage["judge"]["total_tokens"] == 7


def test_the_request_to_a_model_that_judges() -> None:
    sent: list[dict[str, Any]] = []
    grader = make("score_model", sampling_params={"temperature": 0, "max_completions_tokens": 9, "seed": 3})
    grade(grader, {"a": "true"}, make_sample("so"), lambda body: sent.append(body) or completion(1))
    body = sent[0]
    assert body["messages"] == [{"role": "user", "content": "true? so"}]
    assert (body["temperature"], body["max_completion_tokens"], body["seed"]) == (0, 9, 3)
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["result"] == {"type": "number"}


@pytest.mark.parametrize(
    ("kind", "answer", "code"),
    [
        ("score_model", completion("much"), Code.GRADER_MODEL_ANSWER_INVALID),
        ("score_model", completion(True), Code.GRADER_MODEL_ANSWER_INVALID),
        ("score_model", completion(1, content="no json"), Code.GRADER_MODEL_ANSWER_INVALID),
        ("score_model", completion(1, content=None), Code.GRADER_MODEL_ANSWER_INVALID),
        ("score_model", {"choices": []}, Code.GRADER_MODEL_ANSWER_INVALID),
        ("score_model", completion(1, refusal="I will not."), Code.GRADER_MODEL_REFUSED),
        ("label_model", completion("best"), Code.GRADER_MODEL_ANSWER_INVALID),
    ],
)
def test_an_answer_without_a_score_is_an_error(kind: str, answer: dict[str, Any], code: Code) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grade(make(kind), {"a": ""}, make_sample(""), lambda _: answer)
    assert caught.value.code == code


def test_without_a_model_at_hand_a_model_grader_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        grade(make("score_model"), {"a": ""}, make_sample(""))
    assert caught.value.code == Code.GRADER_UNSUPPORTED


def test_a_multi_grader_has_its_parts_scores_and_usage() -> None:
    parts = {
        "exact": make("string_check").model_dump(),
        "judge": make("score_model").model_dump(),
        "again": make("score_model").model_dump(),
    }
    grader = make("multi", graders=parts, calculate_output="(exact + judge + again) / 3")
    given = grade(grader, {"a": "Yes"}, make_sample("Yes"), lambda _: completion(0.5))
    assert given.score == pytest.approx(2 / 3)
    assert given.sub_scores == {"exact": 1, "judge": 0.5, "again": 0.5}
    assert given.usage == {"judge": {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "{{ item.picture }}", "detail": "high"},
        {"type": "input_audio", "input_audio": {"data": "{{ item.clip }}", "format": "mp3"}},
    ],
)
def test_what_no_model_here_can_read_is_well_formed_and_refused(part: dict[str, Any]) -> None:
    message = {"role": "user", "content": [{"type": "input_text", "text": "{{ item.a }}"}, part]}
    judged = GRADER.validate_python({"type": "score_model", "model": "m", "input": [message]})
    refusals = (lambda: check_runnable(judged), lambda: grade(judged, {"a": "b"}, make_sample(""), lambda _: {}))
    for refused in refusals:
        with pytest.raises(InvalidRequest) as caught:
            refused()
        assert caught.value.code is Code.GRADER_UNSUPPORTED


def test_code_is_refused_wherever_it_stands_and_never_run() -> None:
    code = make("python", source="raise SystemExit(3)")
    for grader in (code, make("multi", graders={"code": code.model_dump()}, calculate_output="code")):
        for refused in (lambda: check_runnable(grader), lambda: grade(grader, {}, make_sample(""))):  # noqa: B023
            with pytest.raises(InvalidRequest) as caught:
                refused()
            assert caught.value.code == Code.SANDBOX_UNAVAILABLE


def test_thresholds() -> None:
    assert is_passed(make("text_similarity", pass_threshold=0.6), 0.6)
    assert not is_passed(make("text_similarity", pass_threshold=0.6), 0.59)
    assert is_passed(make("string_check"), 1)
    assert not is_passed(make("string_check"), 0)


@given(st.text())
def test_output_json_is_there_exactly_when_the_answer_is_json(text: str) -> None:
    try:
        assert make_sample(text)["output_json"] == parse_json(text)
    except KeyError:
        with pytest.raises(ValueError):
            parse_json(text)

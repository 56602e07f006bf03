"""``--check``: short names of graders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.evaluation.checks import CRITERION, HELP, METRICS, read_grader, to_criterion
from shared.errors import Code, InvalidRequest
from shared.graders.grading import grade, is_passed, make_sample


def passes(check: str, answer: str, expected: str = "a red fox") -> bool:
    grader = CRITERION.validate_python(to_criterion(check))
    return is_passed(grader, grade(grader, {"expected": expected}, make_sample(answer)).score)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        ("exact", "a red fox", "a red fox."),
        ("contains", "is a red fox.", "a Red fox"),
        ("icontains", "a Red fox", "a fox"),
        ("regex=^a=\\d$", "a=1", "a=x"),
        ("json", "{}", "{"),
        ("rouge_l=0.5", "a red dog", "some other"),
        ("fuzzy_match=1", "a red fox", "a red"),
    ],
)
def test_check_judges_as_its_name_says(check: str, right: str, wrong: str) -> None:
    assert passes(check, right)
    assert not passes(check, wrong)


def test_schema_comes_from_a_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    schema = {"type": "object", "properties": {"a": {"enum": [None, 1]}, "b": {"const": None}}, "required": ["b"]}
    path.write_text(json.dumps(schema))
    assert to_criterion(f"json_schema={path}")["mens"]["json_schema"] == schema
    assert passes(f"json_schema={path}", '{"b": null}')
    assert not passes(f"json_schema={path}", '{"b": 1}')


@pytest.mark.parametrize("name", ["compiles", "anti_stub"])
def test_code_is_checked_in_its_language(name: str) -> None:
    check = to_criterion(f"{name}=python")
    assert check["mens"]["check"] == name
    assert check["mens"]["language"] == "python"


def test_judge_compares_with_what_is_expected() -> None:
    judge = to_criterion("judge=helper")
    assert (judge["type"], judge["model"], judge["passing_labels"]) == ("label_model", "helper", ["correct"])
    assert "{{ item.expected }}" in judge["input"][0]["content"]


def test_better_shows_a_judge_both_answers() -> None:
    judge = to_criterion("better=helper")
    assert (judge["type"], judge["model"], judge["passing_labels"]) == ("label_model", "helper", ["first"])
    assert "{{ sample.other.output_text }}" in judge["input"][0]["content"]


@pytest.mark.parametrize(
    "check",
    [
        "exakt",
        "exact=1",
        "compiles",
        "regex",
        "regex=",
        "json=1",
        "rouge_l",
        "rouge_l=2",
        "bleu=x",
        "judge",
        "better",
    ],
)
def test_check_that_is_none_is_refused_with_those_that_are(check: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        to_criterion(check)
    assert refused.value.code == Code.GRADER_INVALID
    assert all(name in refused.value.remedy for name in ("exact", "regex=", "judge=", *METRICS))
    assert refused.value.remedy.endswith(HELP)


def test_graders_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "grader.json"
    grader = to_criterion("exact")
    path.write_text(json.dumps(grader))
    assert read_grader(path) == [grader]
    path.write_text(json.dumps([grader, to_criterion("json")]))
    assert [each["name"] for each in read_grader(path)] == ["exact", "json"]
    path.write_text(json.dumps(grader | {"operation": "is"}))
    with pytest.raises(InvalidRequest, match="operation"):
        read_grader(path)
    path.write_text("{")
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        read_grader(path)

"""promptfoo's configuration: read, written, and what is not used named with its place."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.evaluation.eval_file import CRITERIA, EvalFile
from cli.evaluation.promptfoo.reading import read_promptfoo
from cli.evaluation.promptfoo.writing import write_promptfoo
from shared.graders.grading import grade, is_passed, make_sample

CONFIG = """
description: Greetings
prompts:
  - "Say {{word}} in {{language.name}}."
  - '[{"role": "system", "content": "Be short."}, {"role": "user", "content": "{{word}}?"}]'
providers:
  - id: openai:chat:gpt-4o-mini
    config: {temperature: 0, max_tokens: 20}
defaultTest:
  assert: [{type: icontains, value: "{{word}}"}]
tests:
  - vars: {word: hi, language: {name: French}}
    assert: [{type: equals, value: "Salut, {{word}}"}]
  - vars: {word: ["yes", "no"], language: {name: German}}
    assert: [{type: equals, value: Ja}]
  - vars: {word: x, language: {name: Latin}}
    assert: [{type: regex, value: "^a+$"}]
"""


def read(text: str = CONFIG) -> Any:
    return read_promptfoo(yaml.safe_load(text), "file")


def passes(evaluation: EvalFile, number: int, answer: str) -> list[bool]:
    """Which criteria an answer to an item meets."""
    item = evaluation.items[number]
    graders = CRITERIA.validate_python(evaluation.criteria)
    scores = [grade(grader, item, make_sample(answer)).score for grader in graders]
    return [is_passed(grader, score) for grader, score in zip(graders, scores, strict=True)]


def test_each_prompt_and_each_form_of_a_test_is_an_eval() -> None:
    found = read()
    assert [each.name for each in found.evals] == [f"Greetings {number}" for number in (1, 2, 3, 4)]
    first, second, third, _ = found.evals
    assert [item["word"] for item in first.items] == ["hi", "yes", "no"], "a list is a test for each of its values"
    assert [item["word"] for item in second.items] == ["x"]
    assert first.input_messages["template"] == [
        {"role": "user", "content": "Say {{ item.word }} in {{ item.language.name }}."}
    ]
    assert [turn["role"] for turn in third.input_messages["template"]] == ["system", "user"]
    assert dict(first.sampling) == {"temperature": 0, "max_completion_tokens": 20}


def test_imported_graders_judge_as_the_assertions() -> None:
    first, second, *_ = read().evals
    assert passes(first, 0, "Salut, hi") == [True, True]
    assert passes(first, 0, "Salut, HI") == [True, False]
    assert passes(first, 1, "Salut, hi") == [False, False], "each item has its own value"
    assert passes(second, 0, "aax") == [True, False]


@pytest.mark.parametrize(
    ("assertion", "right", "wrong"),
    [
        ({"type": "equals", "value": 4}, "4", "5"),
        ({"type": "not-equals", "value": "a"}, "b", "a"),
        ({"type": "contains", "value": "b"}, "abc", "aBc"),
        ({"type": "starts-with", "value": "a.b"}, "a.bc", "axbc"),
        ({"type": "contains-any", "value": ["a+", "b"]}, "x a+ y", "aa"),
        ({"type": "is-json"}, "[1]", "1]"),
        ({"type": "is-json", "value": {"type": "object", "required": ["a"]}}, '{"a": null}', "{}"),
        ({"type": "rouge-n", "value": "the red fox"}, "the red fox", "a ship"),
    ],
)
def test_assertion_has_a_grader(assertion: dict[str, Any], right: str, wrong: str) -> None:
    (evaluation,) = read_promptfoo(
        {"prompts": ["{{q}}"], "tests": [{"vars": {"q": "?"}, "assert": [assertion]}]}, "x"
    ).evals
    assert passes(evaluation, 0, right) == [True]
    assert passes(evaluation, 0, wrong) == [False]


@pytest.mark.parametrize(
    ("assertion", "reason"),
    [
        ({"type": "javascript", "value": "output.length > 3"}, "no such grader"),
        ({"type": "llm-rubric", "value": "is polite"}, "no such grader"),
        ({"type": "equals", "value": {"a": 1}}, "not a string"),
        ({"type": "equals", "value": "x", "weight": 2}, "weight"),
        ({"type": "equals", "value": "x", "transform": "output.trim()"}, "transform"),
        ({"type": "is-json", "value": "file://schema.json"}, "file://"),
        ({"type": "equals", "value": "{{ q | upper }}"}, "filters"),
        ({"type": "equals", "value": "{{ nothing }}"}, "nothing"),
        ("equals", "not an object"),
    ],
)
def test_what_has_no_counterpart_is_named_with_its_place(assertion: Any, reason: str) -> None:
    kept = {"type": "contains", "value": "x"}
    found = read_promptfoo({"prompts": ["{{q}}"], "tests": [{"vars": {"q": "?"}, "assert": [assertion, kept]}]}, "x")
    (line,) = found.unused
    assert line.startswith("tests[0].assert[0]")
    assert reason in line
    assert len(found.evals[0].criteria) == 1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"prompts": ["file://a.txt"]}, "prompts[0]"),
        ({"prompts": ["{% if x %}"]}, "prompts[0]"),
        ({"scenarios": []}, "scenarios"),
        ({"providers": ["openai:gpt-4o"]}, "providers[0]"),
        ({"tests": ["file://tests.csv"]}, "tests[0]"),
        ({"tests": [{"vars": {"q": "file://q.txt"}, "assert": [{"type": "is-json"}]}]}, "tests[0]"),
        ({"tests": [{"vars": {"q": "a"}}]}, "tests[0]"),
        ({"tests": [{"vars": {}, "assert": [{"type": "is-json"}]}]}, "tests[0]"),
        ({"tests": [{"vars": {"q": "a"}, "options": {}, "assert": [{"type": "is-json"}]}]}, "tests[0].options"),
        ({"defaultTest": {"options": {}}}, "defaultTest.options"),
    ],
)
def test_every_part_that_is_not_used_is_named(change: dict[str, Any], line: str) -> None:
    whole = {"prompts": ["{{q}}"], "tests": [{"vars": {"q": "?"}, "assert": [{"type": "is-json"}]}]}
    assert read_promptfoo(whole, "x").unused == []
    assert any(each.startswith(f"{line}:") for each in read_promptfoo(whole | change, "x").unused)


def test_providers_that_are_sampled_differently_give_no_setting() -> None:
    providers = [{"id": "a", "config": {"temperature": 0}}, {"id": "b", "config": {"temperature": 1}}]
    tests = [{"vars": {"q": "?"}, "assert": [{"type": "is-json"}]}]
    found = read_promptfoo({"prompts": ["{{q}}"], "providers": providers, "tests": tests}, "x")
    assert dict(found.evals[0].sampling) == {}
    assert any("sampled differently" in line for line in found.unused)


TEXT = st.text(st.characters(exclude_characters="{}", exclude_categories=("Cs",)), max_size=20)
GRADERS = [
    {
        "type": "string_check",
        "operation": operation,
        "input": "{{ sample.output_text }}",
        "reference": "{{ item.expected }}",
    }
    for operation in ("eq", "ne", "like", "ilike")
] + [
    {"type": "python", "source": "", "mens": {"check": "regex", "pattern": "a+"}},
    {"type": "python", "source": "", "mens": {"check": "json_schema", "json_schema": {"type": "object"}}},
]


@settings(deadline=None, max_examples=15)
@given(
    expected=st.lists(TEXT, min_size=1, max_size=3),
    graders=st.lists(st.sampled_from(GRADERS), min_size=1, max_size=3),
    answer=TEXT,
)
def test_what_is_written_judges_alike_when_it_is_read_again(expected, graders, answer) -> None:
    criteria = [grader | {"name": str(number)} for number, grader in enumerate(graders)]
    messages = {"type": "template", "template": [{"role": "user", "content": "{{ item.expected }}?"}]}
    items = [{"expected": text, "other": {"n": 1}} for text in expected]
    written, unused = write_promptfoo(EvalFile("x", items, criteria, messages, {"temperature": 0.5}), ["m"], "http://h")
    assert unused == []
    (back,) = read_promptfoo(yaml.safe_load(yaml.safe_dump(written)), "x").evals
    assert back.input_messages == messages
    assert [{key: item[key] for key in ("expected", "other")} for item in back.items] == items
    assert dict(back.sampling) == {"temperature": 0.5}
    original = EvalFile("x", items, criteria)
    for number in range(len(items)):
        assert passes(back, number, answer) == passes(original, number, answer)


def test_what_promptfoo_has_not_is_named() -> None:
    judge = {
        "type": "label_model",
        "name": "judge",
        "model": "m",
        "input": [],
        "labels": ["a"],
        "passing_labels": ["a"],
    }
    other = {
        "type": "string_check",
        "name": "json",
        "operation": "eq",
        "input": "{{ sample.output_json.a }}",
        "reference": "1",
    }
    written, unused = write_promptfoo(
        EvalFile("x", [{"messages": []}], [judge, other], sampling={"tools": []}), [], "http://h"
    )
    assert [line.partition(":")[0] for line in unused] == ["judge", "json", "sampling_params.tools"]
    assert written["prompts"] == ["{{ item.messages | dump }}"]
    assert written["defaultTest"]["assert"] == []

"""Criteria that check code: their language and their templates are checked when the eval is created."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import Code, InvalidRequest
from shared.evaluation.criteria import check_eval, check_for_traffic
from shared.evaluation.plan import ModelTarget, PlannedItems, plan_run
from shared.evaluation.types import EvalSpec, RunSpec


def spec(**mens: Any) -> EvalSpec:
    schema = {"type": "object", "properties": {"code": {"type": "string"}}}
    criterion = {"type": "python", "name": "c", "source": "", "mens": mens}
    return EvalSpec.model_validate(
        {"data_source_config": {"type": "custom", "item_schema": schema}, "testing_criteria": [criterion]}
    )


IS_CODE = {"type": "string_check", "name": "s", "input": "{{ sample.output_text }}", "operation": "eq"}


@pytest.mark.parametrize(
    ("mens", "code"),
    [
        ({"check": "compiles", "input": "{{ item.code }}"}, None),
        ({"check": "compiles", "input": "{{ item.absent }}"}, Code.EVAL_INVALID),
        ({"check": "anti_stub", "input": "{{ item.absent }}"}, Code.EVAL_INVALID),
        ({"check": "anti_stub", "language": "cobol"}, Code.CHECKER_NOT_FOUND),
        ({"check": "pass_at_k", "of": {**IS_CODE, "reference": "{{ item.code }}"}}, None),
        ({"check": "pass_at_k", "of": {**IS_CODE, "reference": "{{ item.absent }}"}}, Code.EVAL_INVALID),
    ],
)
def test_what_cannot_be_judged_is_refused_with_its_criterion(mens: dict[str, Any], code: Code | None) -> None:
    if code is None:
        check_eval(spec(**mens))
        return
    with pytest.raises(InvalidRequest) as refused:
        check_eval(spec(**mens))
    assert (refused.value.code, refused.value.param) == (code, "testing_criteria.0")


def run(**source: Any) -> RunSpec:
    rows = {"type": "file_id", "id": "file-1"}
    return RunSpec.model_validate({"data_source": {"source": rows, **source}, "mens": {"samples": 4}})


def test_comparison_of_two_answers_needs_two_models() -> None:
    judge = {
        "type": "label_model",
        "name": "better",
        "model": "critic",
        "labels": ["first", "second"],
        "passing_labels": ["first"],
        "input": [{"role": "user", "content": "{{ sample.output_text }} or {{ sample.other.output_text }}"}],
    }
    config = {"type": "custom", "item_schema": {"type": "object"}}
    both = EvalSpec.model_validate({"data_source_config": config, "testing_criteria": [judge]})
    check_eval(both)
    sampled = run(type="completions", model="m", input_messages={"type": "item_reference", "item_reference": "item.m"})
    items = PlannedItems.model_construct(file_id="file-1", count=3)
    models = [ModelTarget(name=name, served=name) for name in ("new", "old")]
    with pytest.raises(InvalidRequest) as refused:
        plan_run("eval-1", both, sampled, items, models[:1], 1)
    assert (refused.value.code, refused.value.param) == (Code.GRADER_INVALID, "testing_criteria.0")
    assert "--against" in refused.value.remedy
    assert plan_run("eval-1", both, sampled, items, models, 1).models == models
    with pytest.raises(InvalidRequest, match="each answer on its own") as refused:
        check_for_traffic(both)
    assert (refused.value.code, refused.value.param) == (Code.EVAL_INVALID, "shadow.eval")


def test_pass_at_k_of_answers_that_are_judged_one_by_one_is_refused() -> None:
    sampled = run(type="completions", model="m", input_messages={"type": "item_reference", "item_reference": "item.m"})
    items = PlannedItems.model_construct(file_id="file-1", count=3)
    three = spec(check="pass_at_k", k=3, of={**IS_CODE, "reference": "{{ item.code }}"})
    with pytest.raises(InvalidRequest) as refused:
        plan_run("eval-1", three, sampled, items, [], 1)
    assert (refused.value.code, refused.value.param) == (Code.GRADER_INVALID, "mens.k")
    assert "a policy's gate `pass_at_k`" in refused.value.remedy
    one = spec(check="pass_at_k", k=1, of={**IS_CODE, "reference": "{{ item.code }}"})
    assert plan_run("eval-1", one, sampled, items, [], 1).samples == 4

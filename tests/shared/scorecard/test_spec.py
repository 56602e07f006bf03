"""Specs: the original's are read, invalid ones are refused with their field, and items contain the prompt and the
expected answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Code, InvalidRequest
from shared.scorecard.spec import ScorecardSpec, read_spec
from tests.support.scorecards import scorecard_condition, scorecard_spec, scorecard_task

EXAMPLES = Path(__file__).parents[3] / "examples" / "scorecard"


def test_the_originals_baseline_is_read() -> None:
    spec = read_spec(EXAMPLES / "vox-baseline.json")
    assert (spec.prompt_pack_version, spec.max_retries, spec.validator) == ("vox-mens-v1", 2, "vox")
    assert [(condition.id, condition.mode) for condition in spec.conditions] == [
        ("base_qwen_http", "http_generate"),
        ("best_qlora_fixture", "fixture_file"),
    ]
    assert [task.id for task in spec.tasks] == ["actor_ping", "http_route"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_retries": 9}, "max_retries"),
        ({"schema_version": 2}, "schema_version"),
        ({"extra": 1}, "extra"),
        ({"tasks": []}, "tasks"),
        ({"conditions": [scorecard_condition("New")]}, "conditions.0.id"),
        ({"conditions": [{**scorecard_condition("ab"), "server_url": None}]}, "conditions.0"),
        ({"conditions": [scorecard_condition("ab", mode="fixture_file")]}, "conditions.0"),
        ({"tasks": [scorecard_task(1, id="../x")]}, "tasks.0.id"),
        ({"conditions": [scorecard_condition("ab"), scorecard_condition("ab")]}, ""),
    ],
)
def test_what_is_wrong_has_its_field(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({**scorecard_spec(2), **change}))
    with pytest.raises(InvalidRequest) as refused:
        read_spec(path)
    assert (refused.value.code, refused.value.param or "") == (Code.SCORECARD_INVALID, field)
    assert "examples/scorecard" in refused.value.remedy


@pytest.mark.parametrize("text", [None, "", "{", "[" * 100_000])
def test_what_is_not_json_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "spec.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        read_spec(path)
    assert refused.value.code == Code.SCORECARD_INVALID


@given(st.permutations(range(5)))
def test_items_are_neither_their_ids_nor_their_order(order: list[int]) -> None:
    first = ScorecardSpec.model_validate(scorecard_spec(5)).items_digest()
    tasks = [scorecard_task(number, id=f"other_{number}") for number in order]
    assert ScorecardSpec.model_validate(scorecard_spec() | {"tasks": tasks}).items_digest() == first
    assert ScorecardSpec.model_validate(scorecard_spec() | {"tasks": tasks[:4]}).items_digest() != first

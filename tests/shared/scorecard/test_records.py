"""The files' schemas are the golden ones, and a row that contradicts itself is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from shared.scorecard.records import SCHEMAS
from tests.support.scorecards import scorecard_event, scorecard_spec

GOLDEN = Path(__file__).parents[1] / "golden" / "scorecard"


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_is_the_golden_one(name: str) -> None:
    schema = SCHEMAS[name].model_json_schema(by_alias=True)
    path = GOLDEN / f"{name}.schema.json"
    if os.environ.get("MENS_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(schema, indent=2, sort_keys=True) + "\n")
    assert schema == json.loads(path.read_bytes())


def test_another_reader_takes_what_is_written() -> None:
    for name, value in (("spec", scorecard_spec()), ("event", scorecard_event("new", "a").model_dump(mode="json"))):
        schema = json.loads((GOLDEN / f"{name}.schema.json").read_bytes())
        jsonschema.validate(value, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**value, "extra": 1}, schema)


@pytest.mark.parametrize(
    "fields",
    [
        {"repair_depth": 1},
        {"compile_pass_1": False},
        {"time_to_first_valid_ms": None},
        {"hir_error_count": 2},
        {"repair_stalled": True},
        {"compile_pass_n": False},
    ],
)
def test_a_row_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="these fields contradict others of the row"):
        scorecard_event("new", "a", **fields)


def test_success_without_compiling_is_refused() -> None:
    for name in ("task_success", "semantic_task_success", "canonical_pass", "anti_stub_pass"):
        with pytest.raises(ValidationError, match=name):
            scorecard_event("new", "a", is_valid=False, **{name: True})

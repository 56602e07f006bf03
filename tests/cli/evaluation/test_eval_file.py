"""Files that ``mens eval run`` accepts: rows of several shapes, and eval files with graders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.evaluation.eval_file import read, to_item
from shared.errors import Code, InvalidRequest

SYSTEM = {"role": "system", "content": "Add."}
USER = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
EXACT = {"type": "string_check", "name": "e", "input": "{{ sample.output_text }}", "reference": "4", "operation": "eq"}


@pytest.mark.parametrize(
    ("row", "item"),
    [
        ({"messages": [USER], "expected": "4", "tag": 1}, {"messages": [USER], "expected": "4", "tag": 1}),
        ({"messages": [USER, ANSWER]}, {"messages": [USER], "expected": "4"}),
        ({"messages": [USER, ANSWER], "expected": "5"}, {"messages": [USER, ANSWER], "expected": "5"}),
        (
            {"messages": [USER, ANSWER], "system": "Add."},
            {"messages": [SYSTEM, USER], "expected": "4", "system": "Add."},
        ),
        *(
            (row, {**row, "messages": [USER], "expected": "4"})
            for row in (
                {"prompt": "2 + 2?", "completion": "4"},
                {"prompt": "2 + 2?", "response": "4", "tag": 1},
                {"instruction": "2 + 2?", "input": "", "output": "4"},
                {"turns": [USER, ANSWER]},
            )
        ),
        *(
            ({"messages": [USER, answer], **label}, {"messages": [USER], "expected": answer["content"], **label})
            for answer, label in (
                (ANSWER, {"difficulty": "hard"}),
                (ANSWER, {"rating": 9, "input": {"a": 1}}),
                (ANSWER | {"refusal": None, "annotations": []}, {}),
                (ANSWER | {"content": [{"type": "text", "text": "4"}]}, {}),
                (ANSWER, {"label": True}),
            )
        ),
        (
            {"prompt": "2 + 2?", "completion": "4", "category": 3},
            {"prompt": "2 + 2?", "completion": "4", "category": 3, "messages": [USER], "expected": "4"},
        ),
        (
            {"prompt": "2 + 2?", "completion": "5", "label": False},
            {"prompt": "2 + 2?", "completion": "5", "label": False, "messages": [USER]},
        ),
        ({"messages": [USER, ANSWER], "label": False}, {"messages": [USER], "label": False}),
        ({"prompt": [USER], "chosen": [ANSWER]}, {"prompt": [USER], "chosen": [ANSWER]}),
        ({"messages": "2 + 2?"}, {"messages": "2 + 2?"}),
        ({"prompt": "2 + 2?", "answer": 4}, {"prompt": "2 + 2?", "answer": 4, "messages": [USER]}),
        ({"item": {"q": 1}, "sample": {}}, {"q": 1}),
        ({"item": {"q": 1}, "other": 2}, {"item": {"q": 1}, "other": 2}),
        ({"messages": [ANSWER]}, {"messages": [ANSWER]}),
    ],
)
def test_row_becomes_an_item(row: dict[str, Any], item: dict[str, Any]) -> None:
    assert to_item(row) == item


def test_rows_of_a_file_have_a_schema_of_their_keys(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text('{"messages": [], "expected": "4"}\n\n{"messages": [], "expected": "5", "tag": "x"}\n')
    found = read(path)
    assert (found.name, len(found.items), found.criteria) == ("sums", 2, ())
    assert found.item_schema() == {
        "type": "object",
        "properties": {"messages": {}, "expected": {}, "tag": {}},
        "required": ["messages", "expected"],
    }


@pytest.mark.parametrize(
    ("content", "said"), [("", "no rows"), ("{}\n[1]\n", "line 2"), ("{}\n{\n", "line 2"), ("\udc80", "cannot be read")]
)
def test_line_that_is_not_a_row_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InvalidRequest, match=said) as refused:
        read(path)
    assert refused.value.code == Code.EVAL_ITEMS_INVALID


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_eval_file_names_its_rows_or_has_them(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "2 + 2?"}\n')
    template = {"type": "template", "template": [{"role": "user", "content": "{{ item.q }}"}]}
    document = {"testing_criteria": [EXACT], "input_messages": template, "sampling_params": {"temperature": 0}}
    path = tmp_path / f"sums{suffix}"
    path.write_text(json.dumps(document | {"data": "rows.jsonl"}))
    by_name = read(path)
    path.write_text(json.dumps(document | {"items": [{"q": "2 + 2?"}]}))
    assert read(path) == by_name
    assert (by_name.name, list(by_name.items)) == ("sums", [{"q": "2 + 2?"}])
    assert by_name.criteria == [EXACT]
    assert dict(by_name.sampling) == {"temperature": 0}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"item": []}, "item"),
        ({"testing_criteria": [EXACT | {"operation": "is"}]}, "0.string_check.operation"),
        ({"testing_criteria": [EXACT | {"reference": "{{ it }}"}]}, "0.string_check.reference"),
        ({"sampling_params": {"temprature": 0}}, "temprature"),
        ({"data": "rows.jsonl"}, "items"),
        ({"items": None}, "items"),
        ({"items": [1]}, "items"),
    ],
)
def test_field_that_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], param: str) -> None:
    path = tmp_path / "eval.json"
    path.write_text(json.dumps({"testing_criteria": [EXACT], "items": [{"q": 1}]} | change))
    with pytest.raises(InvalidRequest) as refused:
        read(path)
    assert (refused.value.code, refused.value.param) == (Code.EVAL_INVALID, param)


def test_yaml_that_would_make_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "eval.yaml"
    path.write_text("items: !!python/object/apply:os.system [exit]")
    with pytest.raises(InvalidRequest):
        read(path)

"""Tools and calls of other programs are read as those of the chat API, or refused with the form's name; they are never
trained on unchanged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.datasets.reader import DatasetReport, read_rows
from shared.datasets.report import inspect_file
from shared.datasets.rows import RowCode, TrainingRow
from shared.tokenization.served_form import plain_messages, served_tools
from tests.support.invalid_rows import ANSWER, USER, chat

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SERVED = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
MERGED = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": None, "items": None}, "unit": None},
    "required": ["city"],
    "additionalProperties": None,
}


def read(*tools: Any, call: Any = None, text: str | None = None) -> tuple[TrainingRow | None, DatasetReport]:
    """The row of a chat with tools, if it is one, and the report."""
    answer = {"role": "assistant", "content": None, "tool_calls": [call]} if call else ANSWER
    report = DatasetReport()
    rows = list(read_rows([chat(USER, answer, tools=list(tools) if text is None else text)], report))
    return (rows[0] if rows else None), report


@pytest.mark.parametrize(
    ("tool", "done"),
    [
        (SERVED, set()),
        ({"function": SERVED["function"]}, set()),
        ({"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}, {"flat tools"}),
        ({"name": "f", "description": "d", "parameters": SCHEMA}, {"flat tools"}),
        ({"name": "f", "description": "d", "input_schema": SCHEMA}, {"flat tools"}),
        ({"name": "f", "description": "d", "inputSchema": SCHEMA}, {"flat tools"}),
        ({"type": "function", "function": {"name": "f", "description": "d", "input_schema": SCHEMA}}, {"flat tools"}),
        ({"function": {"name": "f", "description": "d", "inputSchema": MERGED}}, {"flat tools", "nulls of a merged schema"}),
        ({"type": "custom", "name": "f", "description": "d", "input_schema": SCHEMA}, {"flat tools"}),
        ({"type": "function", "function": {"name": "f", "description": "d", "parameters": MERGED}}, {"nulls of a merged schema"}),
        ({"type": "function", "name": None, "input_schema": None, "function": SERVED["function"]}, set()),
    ],
)  # fmt: skip
def test_tool_is_what_a_client_sends(tool: dict[str, Any], done: set[str]) -> None:
    row, report = read(tool)
    assert row is not None
    assert served_tools(row.tools) == served_tools([SERVED])
    assert set(report.conversions) == done


def test_tools_may_be_a_text() -> None:
    row, report = read(text=json.dumps([SERVED]))
    assert row is not None
    assert (row.tools, report.conversions) == ([SERVED], {"tools as text": 1})
    assert read(text="")[0] is not None
    assert read(text="")[1].conversions == {}


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"functionDeclarations": [{"name": "f"}]}, "Gemini's `functionDeclarations`"),
        ({"type": "web_search"}, "runs at another provider"),
        ({"type": "function"}, "no function with a name"),
        ({"name": "f", "parameters": {"city": {"type": "string"}}}, "names of parameters where `properties` should be"),
        ({"name": "f", "parameters": {"type": "array"}}, "its `type` is not `object`"),
        ({"name": "f", "input_schema": {"properties": ["city"]}}, "parameters.properties is not an object of schemas"),
        ({"name": "f", "parameters": {"type": "object", "required": "city"}}, "parameters.required is not a list"),
        ({"name": "f", "parameters": {"properties": {"city": 3}}}, "parameters.properties.city is not a schema"),
        (
            {"name": "f", "parameters": {"properties": {"city": {"type": "str"}}}},
            "properties.city.type is 'str', not one of",
        ),
        (
            {"name": "f", "parameters": {"properties": {"a": {"items": {"properties": {"b": {"enum": 1}}}}}}},
            "a.items.properties.b.enum",
        ),
        ({"toolSpec": {"name": "f", "inputSchema": {"json": SCHEMA}}}, "Amazon Bedrock's `toolSpec`"),
        ({"name": "f", "parameter_definitions": {"city": {"type": "str"}}}, "Cohere's `parameter_definitions`"),
        ({"name": "f", "args": {"city": {"type": "string"}}}, "has `args`; write its parameters as a JSON schema"),
        (
            {"function": {"name": "f", "properties": {"city": {"type": "string"}}}},
            "has `properties`; write its parameters",
        ),
        ({"name": "two words"}, "white space"),
        ({"name": 'f"'}, "the character '\"'"),
        ({"name": "f>"}, "the character '>'"),
    ],
)
def test_tool_that_no_client_can_send_is_refused_with_its_form(tool: dict[str, Any], words: str) -> None:
    row, report = read(tool)
    assert row is None
    assert report.errors[0].code is RowCode.ROW_TOOL_INVALID
    assert words in report.errors[0].reason


def test_required_of_an_older_draft_is_not_a_fault() -> None:
    old = {"type": "object", "properties": {"city": {"type": "string", "required": True}}}
    assert read({"name": "f", "parameters": old})[0] is not None


def test_two_tools_of_one_name_are_refused() -> None:
    assert "a second tool with the name 'f'" in read(SERVED, {"name": "f"})[1].errors[0].reason


@pytest.mark.parametrize("arguments", ["", "  ", "{}", "null", None, {}, ...])
def test_call_without_arguments_is_trained_as_it_is_served(arguments: Any) -> None:
    function = {"name": "f"} | ({} if arguments is ... else {"arguments": arguments})
    row, _ = read(SERVED, call={"id": "1", "type": "function", "function": function})
    assert row is not None
    [call] = plain_messages(row.messages)[-1]["tool_calls"]
    assert json.dumps(call) == '{"id": "1", "function": {"arguments": {}, "name": "f"}, "type": "function"}'


@pytest.mark.parametrize(
    "call",
    [
        {"name": "f", "arguments": {"city": "Rome"}},
        {"type": "function_call", "name": "f", "arguments": '{"city": "Rome"}'},
        {"type": "tool_use", "name": "f", "input": {"city": "Rome"}},
    ],
)
def test_flat_call_is_a_call_of_a_function(call: dict[str, Any]) -> None:
    row, report = read(SERVED, call={"id": "1", **call})
    assert row is not None
    [found] = plain_messages(row.messages)[-1]["tool_calls"]
    assert found == {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"city": "Rome"}}}
    assert report.conversions == {"flat calls": 1}


def arguments_of(given: dict[str, Any], **properties: Any) -> Any:
    tool = {"name": "f", "parameters": {"type": "object", "properties": properties, "required": ["must"]}}
    row, _ = read(tool, call={"id": "1", "type": "function", "function": {"name": "f", "arguments": given}})
    assert row is not None
    assert row.messages[-1].tool_calls
    return row.messages[-1].tool_calls[0]["function"]["arguments"]


def test_null_arguments_that_the_tool_has_no_place_for_are_left_out() -> None:
    text, nullable = {"type": "string"}, {"type": ["string", "null"]}
    assert arguments_of({"a": "x", "b": None, "other": None}, a=text, b=text) == {"a": "x"}
    kept = {"a": None, "must": None, "any": None}
    assert arguments_of(kept, a=nullable, must=text, any={}) == kept
    inner = {"type": "object", "properties": {"x": text}}
    nested = {"a": {"x": "1", "y": None}, "b": [{"x": None}, 3]}
    assert arguments_of(nested, a=inner, b={"type": "array", "items": inner}) == {"a": {"x": "1"}, "b": [{}, 3]}
    assert arguments_of({"a": None}) == {"a": None}  # a tool that describes no parameters


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "name", "function", "parameters", "properties", "input_schema", "a", "required"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(
    st.lists(JSON, max_size=2), st.dictionaries(st.sampled_from(["name", "arguments", "function", "id", "input"]), JSON)
)
def test_any_tools_are_served_ones_or_a_coded_error(tools: list[Any], call: dict[str, Any]) -> None:
    row, report = read(*tools, call=call)
    if row is None:
        assert report.errors[0].code in RowCode
        return
    for tool in row.tools or ():
        assert tool["function"]["name"].strip()
    again, second = DatasetReport(), None
    line = chat(USER, ANSWER, tools=row.tools)
    second = list(read_rows([line], again))
    assert second[0].tools == row.tools
    assert not set(again.conversions) - {"nulls of a merged schema"}


# -- calls of tools that the row does not list, and Anthropic's parts ----------------------------------------------------


def test_call_of_a_tool_that_the_row_does_not_list_is_a_warning_with_its_place(tmp_path: Path) -> None:
    def called(name: str, **more: Any) -> dict[str, Any]:
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
        return {"role": "assistant", "content": None, "tool_calls": [call], **more}

    result = {"role": "tool", "content": "ok", "tool_call_id": "1"}
    rows = [
        chat(USER, called("f"), tools=[SERVED]),
        chat(USER, called("f"), result, called("g\u202e"), tools=[SERVED]),
        chat(USER, called("g"), tools=[{"name": "f", "input_schema": SCHEMA}]),
        chat(USER, called("g", weight=0), result, ANSWER, tools=[SERVED]),
        chat(USER, called("g")),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(rows))
    report = inspect_file(path)
    assert report.usable
    assert [(one.line, one.code, one.field) for one in report.training.warnings] == [
        (2, "ROW_TOOL_NOT_LISTED", "messages[3].tool_calls[0].function.name"),
        (3, "ROW_TOOL_NOT_LISTED", "messages[1].tool_calls[0].function.name"),
        (5, "ROW_TOOLS_MISSING", "messages[1].tool_calls[0].function.name"),
    ]
    assert report.training.warnings_by_code == {"ROW_TOOL_NOT_LISTED": 2, "ROW_TOOLS_MISSING": 1}
    assert (
        "2 rows call tools that are not among the row's own tools (ROW_TOOL_NOT_LISTED): in line 2, "
        r"messages[3].tool_calls[0].function.name is 'g\u202e', and the row's tools are 'f'."
    ) in report.warnings
    assert (
        "1 row calls a tool but has no `tools`, which a request would send (ROW_TOOLS_MISSING): in line 5, "
        "messages[1].tool_calls[0].function.name is 'g', and the row has no `tools`."
    ) in report.warnings


@pytest.mark.parametrize(
    ("part", "way"),
    [
        ({"type": "tool_use", "id": "1", "name": "f", "input": {}}, "the turn's `tool_calls`: {id, type: function,"),
        ({"type": "tool_result", "tool_use_id": "1", "content": "ok"}, "a turn of its own: {role: tool, tool_call_id,"),
        ({"type": "thinking", "thinking": "x", "signature": "y"}, "the turn's `reasoning_content`"),
    ],
)
def test_part_of_anthropic_is_refused_with_its_form_and_the_way_out(part: dict[str, Any], way: str) -> None:
    report = DatasetReport()
    assert not list(read_rows([chat({"role": "user", "content": [part]}, ANSWER)], report))
    [error] = report.errors
    assert (error.code, error.field) == (RowCode.ROW_PART_UNSUPPORTED, "messages[0].content[0]")
    assert f"is Anthropic's `{part['type']}`; write" in error.reason
    assert way in error.reason


def test_part_of_openais_responses_is_refused_with_the_way_out() -> None:
    report = DatasetReport()
    assert not list(read_rows([chat(USER, {**ANSWER, "content": [{"type": "output_text", "text": "Hi"}]})], report))
    [error] = report.errors
    assert (error.code, error.field) == (RowCode.ROW_PART_UNSUPPORTED, "messages[1].content[0]")
    assert error.reason.endswith("write its type as `text` (`mens data convert` does)")

"""Rows that must be refused, each with its code: written by hand, field by field, and truncated valid rows."""

from __future__ import annotations

import json
from typing import Any

from shared.datasets.row_validation import MAX_LINE_BYTES
from shared.datasets.rows import RowCode

R = RowCode
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NOT_TEXT: list[Any] = [0, 1.5, True, {}, ["Hi"], {"text": "Hi"}]
NOT_WHOLE: list[Any] = [1.5, "3", True, [], {}]
NOT_TURNS: list[Any] = ["x", 1, {}, [1], ["x"], [None], [[]]]
NOT_SCHEMAS: list[Any] = [
    {"city": {"type": "string"}}, {"title": {"type": "string"}}, {"type": "array"}, {"type": {"type": "string"}}, {"type": ["string"]},
    {"properties": ["city"]}, {"properties": {"city": "string"}}, {"required": "city"}, {"required": [1]}, "x", [], 5, True,
]  # fmt: skip
NOT_ROLES: list[Any] = [1, None, []]
TEXT_FIELDS = ["prompt", "response", "instruction", "output", "completion", "category", "lane", "task_family"]


def line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def pair(**fields: Any) -> bytes:
    return line({"prompt": "Hi", "response": "Hello"} | fields)


def chat(*messages: Any, **fields: Any) -> bytes:
    return line({"messages": list(messages)} | fields)


def bad_rows() -> list[tuple[bytes, RowCode]]:
    """Every pair of line and code."""
    groups = (
        _broken_bytes,
        _missing,
        _mistyped,
        _out_of_range,
        _chats,
        _tools,
        _spans,
        _conflicts,
        _older_forms,
        _excluded,
    )
    return [row for group in groups for row in group()]


def _broken_bytes() -> list[tuple[bytes, RowCode]]:
    good = chat(USER, ANSWER)
    blank = [(text, R.ROW_BLANK) for text in (b"", b" ", b"\t", b"\r", b"  \r\n", b"\n")]
    cut = [(good[:length], R.ROW_NOT_JSON) for length in range(1, len(good), 2)]
    # a `"` or a control character in the place of a byte of the structure
    torn = [(good[:place] + b"\x00" + good[place + 1 :], R.ROW_NOT_JSON) for place in range(0, len(good), 3)]
    utf8 = [
        (b'{"prompt": "' + bad + b'", "response": "x"}', R.ROW_NOT_UTF8)
        for bad in (b"\xff", b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"ok \x80", b"\xe2\x82")
    ]
    surrogates = [
        (b'{"prompt": "' + bad + b'", "response": "x"}', R.ROW_LONE_SURROGATE)
        for bad in (b"\\ud800", b"\\udfff", b"x\\uDBFFx", b"\\ud800\\u0041", b"\\udc00\\ud800")
    ]
    syntax = [
        b"{'prompt': 'x'}", b'{"prompt": }', b'{"a": 1,}', b"{,}", b"nul", b'{"prompt": "x" "response": "y"}', b"\x00",
        good + good, good + b" x", b'{"prompt": "\x01"}', b'{"a": 01}', b'{"a": 1.}', b'{"a": .5}', b'{"a": +1}',
        b'{"a": NaN}', b'{"a": Infinity}', b'{"a": "\\q"}', b'{"a": "\\u12"}', b'{"a" 1}', b"{1: 2}", b'{"a": tru}',
        b"// a comment", b'{"a": 1 /* no */}', b"prompt,response", b"<html>", b"]", b'{"a": "line\nbreak"}',
    ]  # fmt: skip
    others = [b"[1, 2]", b"[]", b'"text"', b"5", b"null", b"true", b"-1.5", good.join([b"[", b"]"])]
    deep = [b'{"a": ' + b"[" * 100_000, b'{"a": ' * 100_000, b'{"tools": [{"a": ' + b"[" * 50_000]
    long = [pair(prompt="x" * MAX_LINE_BYTES), b"x" * (MAX_LINE_BYTES + 1), b" " * (MAX_LINE_BYTES + 1)]
    packed = [(b"\x1f\x8b\x08", R.ROW_NOT_UTF8), (b"\xff\xfe{\x00", R.ROW_NOT_UTF8)]
    rest = [(syntax, R.ROW_NOT_JSON), (others, R.ROW_NOT_OBJECT), (deep, R.ROW_TOO_DEEP), (long, R.ROW_TOO_LONG)]
    return [*blank, *cut, *torn, *utf8, *surrogates, *packed, *((text, code) for texts, code in rest for text in texts)]


def _missing() -> list[tuple[bytes, RowCode]]:
    rows = [{}, {"messages": None}, {"messages": []}, {"turns": []}, {"text": "Hi"}, {"prompt": None, "response": "x"}]
    alone = [{name: "x"} for name in ("prompt", "instruction", "response", "output", "completion")]
    roles = [{"messages": [{"content": "x"}]}, {"turns": [USER, {"content": "x"}]}]
    span = [pair(syntax_spans=[{"end": 1, "weight": 1}]), pair(syntax_spans=[{"start": 0, "end": 1}])]
    return [(text, R.ROW_FIELD_MISSING) for text in [*map(line, [*rows, *alone, *roles]), *span]]


def _mistyped() -> list[tuple[bytes, RowCode]]:
    texts = [pair(**{name: value}) for name in TEXT_FIELDS for value in NOT_TEXT]
    contents = [chat({"role": "user", "content": value}, ANSWER) for value in NOT_TEXT]
    lists = [line({name: value}) for name in ("messages", "turns") for value in NOT_TURNS]
    about = [pair(**{name: value}) for name in ("input", "context", "system") for value in (["1"], {"a": 1}, 5, False)]
    whole = [pair(**{name: value}) for name in ("rating", "difficulty") for value in NOT_WHOLE]
    roles = [chat({"role": value, "content": "x"}) for value in NOT_ROLES]
    more = [
        pair(syntax_spans={}), pair(syntax_spans=[1]), pair(tools=["f"]),
        chat(USER, ANSWER | {"tool_calls": "f"}), chat(USER, ANSWER | {"tool_calls": [1]}), pair(response_mode=1),
        chat(USER, ANSWER | {"name": 1}),
    ]  # fmt: skip
    groups = (texts, contents, lists, about, whole, roles, more)
    return [(text, R.ROW_FIELD_TYPE) for group in groups for text in group]


def _out_of_range() -> list[tuple[bytes, RowCode]]:
    huge = 10**400
    ratings = [(pair(rating=value), R.ROW_RATING_RANGE) for value in (0, 6, -1, 100, huge, -huge)]
    difficulties = [(pair(difficulty=value), R.ROW_DIFFICULTY_RANGE) for value in (0, 11, -3, huge)]
    modes = [(pair(response_mode=value), R.ROW_RESPONSE_MODE_UNKNOWN) for value in ("code", "", "CODE_ONLY")]
    endless = pair(syntax_spans=[_span(0, 1) | {"weight": 7}]).replace(b"7", b"1e999")
    long = pair(tools=[{"name": "f", "x": 7}]).replace(b"7", b"7" * 5000)
    numbers = [(text, R.ROW_NUMBER_RANGE) for text in (endless, long)]
    return ratings + difficulties + modes + numbers


def _chats() -> list[tuple[bytes, RowCode]]:
    roles = [
        (chat({"role": role, "content": "x"}, ANSWER), R.ROW_ROLE_UNKNOWN)
        for role in ("", "human", "gpt", "User", "ASSISTANT", "bot", "functions", "user ")
    ]
    empty = [
        chat({"role": "user", "content": content}, ANSWER)
        for content in ("", " \n", "\u3000", [], [{"type": "text", "text": ""}])
    ]
    null = [chat({"role": role, "content": None}, ANSWER) for role in ("user", "system", "tool")]
    bare = [chat({"role": "user"}, ANSWER), pair(prompt=""), pair(prompt="\t ")]
    last = [
        chat(USER), chat(ANSWER, USER), chat(USER, ANSWER, {"role": "tool", "content": "x"}), line({"turns": [USER]}),
        chat(USER, ANSWER, {"role": "system", "content": "x"}),
    ]  # fmt: skip
    answers = [chat(USER, {"role": "assistant", "content": value}) for value in ("", " ", "\n\t", "\u3000", None)]
    between = [
        chat(USER, {"role": "assistant", "content": value}, USER, ANSWER) for value in ("", " ", "\u2003\n", None)
    ]
    between.append(chat(USER, {"role": "assistant"}))
    between += [chat(USER, {"role": "assistant", "content": value, "weight": 1}, USER, ANSWER) for value in ("", None)]
    between.append(chat(USER, {"role": "assistant", "content": None, "weight": 0}, USER, ANSWER))
    pairs = [pair(response=value) for value in ("", " ", "\r\n")] + [line({"instruction": "x", "output": ""})]
    weights = [chat(USER, ANSWER | {"weight": value}) for value in (2, -1, 0.5, "1", True)]
    unlearnt = [chat(USER, ANSWER | {"weight": 0}), chat(USER, ANSWER | {"weight": 0}, USER, ANSWER | {"weight": 0})]
    groups = [
        (empty + null + bare, R.ROW_CONTENT_EMPTY), (last, R.ROW_LAST_TURN_NOT_ASSISTANT),
        (answers + between + pairs, R.ROW_ANSWER_EMPTY), (weights, R.ROW_WEIGHT_INVALID),
        (unlearnt, R.ROW_NOTHING_TO_LEARN),
    ]  # fmt: skip
    return roles + [(text, code) for texts, code in groups for text in texts]


def _tools() -> list[tuple[bytes, RowCode]]:
    tools: list[Any] = [
        {}, {"type": "function"}, {"function": "f"}, {"function": {}}, {"function": {"name": ""}}, {"name": 5},
        {"function": {"name": "f", "parameters": "x"}}, {"function": {"name": "f", "parameters": []}},
        {"functionDeclarations": [{"name": "f"}]}, {"function_declarations": []}, {"type": "web_search"},
        {"type": "custom", "name": "f"}, {"type": "custom", "name": "f", "format": {"type": "grammar"}}, {"name": "two words"},
        {"type": "mcp", "server_label": "s"}, {"type": "function", "name": "f", "function": "g"},
        *({"name": "f", "parameters": schema} for schema in NOT_SCHEMAS), *({"name": "f", "input_schema": schema} for schema in NOT_SCHEMAS),
    ]  # fmt: skip
    arguments: list[Any] = ["x", "[]", "5", "{", 5, [], '{"a": NaN}']
    calls: list[Any] = [{}, {"function": "f"}, {"function": {"arguments": "{}"}}, {"function": {"name": " "}}]
    calls += [{"function": {"name": "f", "arguments": value}} for value in arguments]
    bad_calls = [chat(USER, {"role": "assistant", "content": None, "tool_calls": [call]}) for call in calls]
    bad_calls.append(chat(USER | {"tool_calls": [CALL]}, ANSWER))
    lists: list[Any] = [[tool] for tool in tools] + [
        [{"name": "f"}, {"function": {"name": "f"}}],
        "x",
        "[1]",
        '{"name": 1}',
    ]
    return [(pair(tools=each), R.ROW_TOOL_INVALID) for each in lists] + [
        (text, R.ROW_TOOL_CALL_INVALID) for text in bad_calls
    ]


def _spans() -> list[tuple[bytes, RowCode]]:
    places = [(-1, 2), (0, -1), (0, 6), (5, 6), (3, 3), (4, 2), (100, 200), (0, 10**30)]
    spans = [(pair(syntax_spans=[_span(*place)]), R.ROW_SPAN_OUT_OF_RANGE) for place in places]
    spans.append((chat(USER, ANSWER, syntax_spans=[_span(0, 5), _span(0, 6)]), R.ROW_SPAN_OUT_OF_RANGE))
    weights = [(pair(syntax_spans=[_span(0, 5) | {"weight": value}]), R.ROW_WEIGHT_INVALID) for value in (-1, -0.5)]
    return spans + weights


def _conflicts() -> list[tuple[bytes, RowCode]]:
    asks, says = {"prompt": "Hi"}, {"response": "Hello"}
    names = [asks | says | {name: "other"} for name in ("instruction", "output", "completion")]
    beside = [{"messages": [USER, ANSWER], name: "other"} for name in ("prompt", "instruction", "response", "output")]
    system = [
        {"messages": [{"role": role, "content": "A"}, USER, ANSWER], "system": "B"} for role in ("system", "developer")
    ]
    turns = [{"messages": [USER, ANSWER], "turns": [USER, ANSWER, USER, ANSWER]}]
    swapped = [{"messages": [USER, ANSWER], "prompt": "Hello"}, {"messages": [USER, ANSWER], "output": "Hi"}]
    twofold = {"type": "text", "text": "Hi", "refusal": "No."}
    older = {"function_call": CALL["function"]}
    chats = [
        chat(USER, ANSWER | older | {"tool_calls": [CALL]}), chat(USER, ANSWER | {"refusal": "No."}),
        chat(USER | {"refusal": "No."}, ANSWER), chat(USER | {"content": [twofold]}, ANSWER), chat(USER, ANSWER, tools=[{"name": "f"}], functions=[{"name": "f"}]),
    ]  # fmt: skip
    rows = [*map(line, [*names, *beside, *system, *turns, *swapped]), *chats]
    return [(text, R.ROW_FIELD_CONFLICT) for text in rows]


def _older_forms() -> list[tuple[bytes, RowCode]]:
    parts: list[Any] = [
        {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "input_audio"}, {"type": "text"}, {"type": "refusal"},
    ]  # fmt: skip
    calls = ANSWER | {"function_call": {"name": "f", "arguments": "{}"}}
    answers = {"role": "function", "name": "g", "content": "1"}
    orphans = [chat(USER, answers, ANSWER), chat(USER, calls, answers, ANSWER)]
    broken = [chat(USER, ANSWER | {"function_call": {"name": "f", "arguments": "x"}}), *orphans]
    found = [(chat(USER | {"content": [part]}, ANSWER), R.ROW_PART_UNSUPPORTED) for part in parts]
    found += [(text, R.ROW_TOOL_CALL_INVALID) for text in broken]
    found.append((chat(USER, ANSWER | {"function_call": {"arguments": "{}"}}), R.ROW_FIELD_MISSING))
    found.append((chat(USER | {"content": [{"text": "Hi"}]}, ANSWER), R.ROW_FIELD_MISSING))
    return found


def _excluded() -> list[tuple[bytes, RowCode]]:
    rows = [pair(**{name: False}) for name in ("label", "train", "training", "trainable", "loss")]
    rows += [chat(USER, ANSWER, label=False), line({"prompt": "Hi", "completion": "No", "label": False})]
    rows += [pair(**{name: value}) for name in ("train", "trainable") for value in (0, 0.0, "False")]
    rows += [pair(loss_scale=0), pair(loss_mask=False), pair(mask=True), pair(masked="true"), pair(train="no")]
    rows += [pair(loss="false"), pair(weight=0), pair(weight=False), chat(USER, ANSWER, weight=0.0)]
    rows.append(chat(USER, ANSWER | {"train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False}]}))
    found = [(text, R.ROW_EXCLUDED) for text in rows]
    found += [(chat(USER, ANSWER | {"loss": value}), R.ROW_NOTHING_TO_LEARN) for value in (0, 0.0, "FALSE")]
    found += [(chat(USER, ANSWER | flag), R.ROW_NOTHING_TO_LEARN) for flag in ({"train": False}, {"masked": True})]
    found.append((chat(USER, ANSWER | {"loss": False, "weight": 1}, USER, ANSWER), R.ROW_FIELD_CONFLICT))
    found.append((line({"instruction": "x", "output": "y", "history": [["a", "b"]]}), R.ROW_FIELD_CONFLICT))
    found.append((chat(USER | {"content": "<image> What is it?"}, ANSWER, images=["a.png"]), R.ROW_PART_UNSUPPORTED))
    found.append((pair(prompt="Describe <video>", videos=["a.mp4"]), R.ROW_PART_UNSUPPORTED))
    return found


def _span(start: int, end: int) -> dict[str, Any]:
    return {"start": start, "end": end, "weight": 2.0, "kind": "keyword"}

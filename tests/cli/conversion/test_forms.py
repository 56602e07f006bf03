"""Rows of other programs: the resulting chat, the account of the conversion, and a coded reason for every dropped row."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.conversion.convert import Rules, convert_file
from cli.conversion.file_report import ConversionReport
from cli.conversion.outcomes import DropReason, RowOptions
from shared.datasets.forms.recognition import RowForm, recognise
from shared.datasets.reader import read_rows
from shared.datasets.rows import RowCode
from tests.support.foreign_rows import (
    ANTHROPIC_CALLS,
    BEDROCK_CALLS,
    CALLED,
    HI,
    READABLE,
    TOOL,
    UNREADABLE,
    said,
)

GOLDEN = Path(__file__).parent / "golden" / "accounts.json"
ALPACA = {"instruction": "Hi", "output": "No", "history": [["Hi", "Hello"]]}
CHOSEN = Rules(options=RowOptions(as_supervised=True))
RATED = Rules(options=RowOptions(as_rated=True))
PAIRS = Rules(options=RowOptions(as_pairs=True))


def converted(
    folder: Path, *rows: Any, rules: Rules = CHOSEN
) -> tuple[list[dict[str, Any]], ConversionReport, list[dict[str, Any]]]:
    """The rows that rows become, the report and the account."""
    source, output, account = folder / "in.jsonl", folder / "out.jsonl", io.BytesIO()
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = convert_file(source, output, rules, account=account)
    written = [json.loads(line) for line in output.read_bytes().splitlines()] if report.output else []
    return written, report, [json.loads(line) for line in account.getvalue().splitlines()]


@pytest.mark.parametrize("number", range(len(READABLE)))
def test_row_of_another_program_says_its_chat(number: int, tmp_path: Path) -> None:
    form, row, turns = READABLE[number]
    assert recognise(row) is form
    [written], report, [account] = converted(tmp_path, row, rules=Rules(form, options=CHOSEN.options))
    assert written["messages"] == turns
    assert (report.rows, report.dropped, account["rows"]) == (1, 0, 1)
    assert list(read_rows((tmp_path / "out.jsonl").read_bytes().splitlines()))


@pytest.mark.parametrize("number", range(len(READABLE)))
def test_form_is_found_without_being_named(number: int, tmp_path: Path) -> None:
    """A row that the reader takes as it is stays; the chat is the same."""
    _, row, turns = READABLE[number]
    converted(tmp_path, row)
    [found] = read_rows((tmp_path / "out.jsonl").read_bytes().splitlines())
    assert [(turn.role, turn.content) for turn in found.messages] == [(turn["role"], turn["content"]) for turn in turns]


@pytest.mark.parametrize("number", range(len(UNREADABLE)))
def test_row_that_cannot_be_converted_is_dropped_for_a_reason(number: int, tmp_path: Path) -> None:
    form, row, reason = UNREADABLE[number]
    assert recognise(row) is form
    rows, report, [account] = converted(tmp_path, row)
    assert (account["outcome"], account["reason"], rows) == ("dropped", reason, [])
    assert report.refused == "no row can be trained on"
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("flag", [{"train": False}, {"weight": 0}, {"loss": "false"}])
def test_row_that_is_marked_as_not_to_be_trained_on_is_dropped(flag: dict[str, Any], tmp_path: Path) -> None:
    rows, _, accounts = converted(tmp_path, *({**row, **flag} for row in (ALPACA, {"question": "Hi", "answer": "No"})))
    assert (rows, {account["reason"] for account in accounts}) == ([], {RowCode.ROW_EXCLUDED})


@pytest.mark.parametrize("row", [{"prompt": "Hi", "completion": "No"}, {"messages": said("Hi", "No")}, ALPACA])
@pytest.mark.parametrize(
    ("label", "is_good"),
    [(True, True), (False, False), ("true", True), ("False", False), (1, True), (0, False), ("1", True), ("0", False)],
)
def test_a_rating_is_kept_however_it_is_written(
    label: object, is_good: bool, row: dict[str, Any], tmp_path: Path
) -> None:
    [written], _, _ = converted(tmp_path, {**row, "label": label}, rules=RATED)
    assert written["label"] is is_good


@pytest.mark.parametrize("label", [False, "false", " False "])
def test_a_row_that_is_rated_bad_is_not_learnt(label: object, tmp_path: Path) -> None:
    rows = [{**row, "label": label} for row in (ALPACA, {"prompt": "Hi", "completion": "No"}, {"messages": HI})]
    written, report, _ = converted(tmp_path, *rows, rules=Rules())
    assert (written, report.drops) == ([], {DropReason.LABEL_FALSE: 3})


def test_a_number_as_label_may_be_a_class(tmp_path: Path) -> None:
    rows = [{"prompt": "Hi", "completion": "No", "label": label} for label in (0, 1, 2, "0")]
    assert converted(tmp_path, *rows, rules=Rules())[1].rows == 4


@pytest.mark.parametrize(
    ("label", "reason"), [("good", "ROW_LABEL_INVALID"), (2, "ROW_LABEL_INVALID"), (None, "not_rated")]
)
def test_a_label_that_rates_nothing_is_reported(label: object, reason: str, tmp_path: Path) -> None:
    _, report, _ = converted(tmp_path, {"prompt": "Hi", "completion": "No", "label": label}, rules=RATED)
    assert report.drops == {reason: 1}


def test_a_pair_stays_a_pair_whatever_its_label(tmp_path: Path) -> None:
    rows = [{"prompt": f"{label}?", "chosen": "Yes", "rejected": "No", "label": label} for label in (False, 1, "x")]
    written, _, _ = converted(tmp_path, *rows, rules=RATED)
    assert [row["label"] for row in written] == [True, False] * 3


def test_chained_rankings_give_ratings_that_agree(tmp_path: Path) -> None:
    def pair(chosen: str, rejected: str) -> dict[str, str]:
        return {"prompt": "Hi", "chosen": chosen, "rejected": rejected}

    rows = [
        pair("A", "B"),
        pair("B", "C"),
        pair("B", "A"),
        pair("D", "D "),
        {"prompt": "Hi", "completion": "C", "label": True},
    ]
    written, report, accounts = converted(tmp_path, *rows, rules=RATED)
    assert [(row["messages"][-1]["content"], row["label"]) for row in written] == [
        ("A", True),
        ("B", False),
        ("C", False),
    ]
    assert (report.rows, report.changes["contradicting_answer_dropped"]) == (3, 1)
    assert report.drops == {RowCode.ROW_LABEL_CONTRADICTS: 2, RowCode.ROW_ANSWERS_EQUAL: 1}
    assert [account.get("rows", 0) for account in accounts] == [2, 1, 0, 0, 0]


def test_a_rated_chat_that_the_reader_would_refuse_is_dropped_with_its_code(tmp_path: Path) -> None:
    turns = [*said("Hi", "Hello"), {"role": "assistant", "content": "Bye"}]
    _, report, _ = converted(tmp_path, {"messages": turns, "label": True}, rules=RATED)
    assert report.drops == {RowCode.ROW_PROMPT_ENDS_WITH_ANSWER: 1}


def test_turn_that_is_marked_as_not_to_be_trained_on_stays_marked(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Rain?"}, {"from": "function_call", "value": '{"name": "f"}', "train": False}]
    turns += [{"from": "observation", "value": "1"}, {"from": "gpt", "value": "No.", "loss": "false"}]
    turns += [{"from": "human", "value": "Sure?"}, {"from": "gpt", "value": "Yes."}]
    converted(tmp_path, {"conversations": turns})
    [found] = read_rows((tmp_path / "out.jsonl").read_bytes().splitlines())
    assert [turn.weight for turn in found.messages if turn.role == "assistant"] == [0, 0, None]


def test_keys_of_geminis_contents_are_counted_or_read(tmp_path: Path) -> None:
    def content(role: str, text: str, **more: Any) -> dict[str, Any]:
        return {"role": role, "parts": [{"text": text}], **more}

    turns = [content("user", "Hi", id=7), content("model", "No", train=False), content("user", "So?", empty={})]
    turns += [content("model", "Yes", citations=["x"])]
    instruction = {"parts": [{"text": "Be short."}], "language": "en"}
    _, report, [account] = converted(tmp_path, {"systemInstruction": instruction, "contents": turns})
    left_out = ["systeminstruction.language", "contents[].id", "contents[].citations"]
    assert account["unused_keys"] == left_out and sorted(report.unused_keys) == sorted(left_out)
    [found] = read_rows((tmp_path / "out.jsonl").read_bytes().splitlines())
    assert [turn.weight for turn in found.messages if turn.role == "assistant"] == [0, None]


def test_every_form_has_a_sample() -> None:
    assert {form for form, _, _ in READABLE} | {RowForm.MESSAGES} == set(RowForm)


def test_accounts_of_the_samples_are_the_recorded_ones(tmp_path: Path) -> None:
    rows = [{"id": number, **row} for number, (_, row, _) in enumerate(READABLE)] + [row for _, row, _ in UNREADABLE]
    _, report, account = converted(tmp_path, *rows)
    assert report.lines == len(rows) == report.kept + report.changed + report.dropped
    found = json.dumps(account, indent=1) + "\n"
    if os.environ.get("MENS_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(found)
    assert GOLDEN.read_text() == found, "MENS_UPDATE_GOLDEN=1 pytest tests/cli/conversion/test_forms.py writes it"


def test_preferences_are_trained_on_only_on_request(tmp_path: Path) -> None:
    rows = [row for form, row, _ in READABLE if form is RowForm.PREFERENCE]
    written, report, _ = converted(tmp_path, *rows, rules=Rules())
    assert (written, report.drops) == ([], {DropReason.PREFERENCE: len(rows)})


PAIR = {"prompt": [HI[0]], "chosen": [HI[1]], "rejected": [said("Hi", "No")[1]]}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "chosen": HI, "rejected": said("Hi", "No"), "messages": HI, "score_chosen": 8.5},
        {"instruction": "Hi", "completions": [{"response": text, "score": len(text)} for text in ("No", "Hey", "Hello")]},
        {"prompt": "Hi", "responses": ["No", "Hello", "Hey"], "scores": [-1, 3, 0]},
        {"conversations": [{"from": "human", "value": "Hi"}], "chosen": {"from": "gpt", "value": "Hello"}, "rejected": {"from": "gpt", "value": "No"}},
        {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello", "rejected": "\n\nHuman: Hi\n\nAssistant: No"},
    ],
    ids=["ultrafeedback-binarized", "ultrafeedback", "two lists", "sharegpt", "hh-rlhf"],
)  # fmt: skip
def test_pairs_of_any_form_are_written_for_dpo(row: dict[str, Any], tmp_path: Path) -> None:
    [written], report, _ = converted(tmp_path, row, rules=PAIRS)
    assert written == PAIR
    assert list(report.changes) == ["form_to_pair", "best_and_worst_taken"][: len(report.changes)]
    [rated, other], _, _ = converted(tmp_path, row, rules=RATED)
    assert (rated, other) == ({"messages": HI, "label": True}, {"messages": said("Hi", "No"), "label": False})


def test_what_is_not_a_pair_is_dropped_with_its_reason(tmp_path: Path) -> None:
    plain = {"prompt": "Hi", "chosen": "Hello", "rejected": "No", "rating": 5}
    rows: list[Any] = [
        plain,
        {"prompt": "Hi", "response": "Hello"},
        {"prompt": "Hi", "chosen": HI, "rejected": HI},
        {"prompt": "Hi", "chosen": HI, "rejected": said("Ho", "No")},
        {"prompt": "Hi", "responses": ["No ", "No"], "scores": [1, 2]},
    ]
    written, report, _ = converted(tmp_path, *rows, rules=PAIRS)
    assert (written, report.kept) == ([plain], 1)
    assert report.drops == {"not_a_preference": 1, "ROW_ANSWERS_EQUAL": 2, "ROW_PROMPTS_DIFFER": 1}


def test_a_ranking_is_dropped_unless_a_kind_of_row_is_requested(tmp_path: Path) -> None:
    rows = [row for form, row, _ in READABLE if form is RowForm.RANKING]
    written, report, _ = converted(tmp_path, *rows, rules=Rules())
    assert (written, report.drops) == ([], {DropReason.RANKING: len(rows)})


def test_row_that_the_reader_takes_stays_byte_for_byte(tmp_path: Path) -> None:
    line = (
        '{ "messages" : [{"role":"user","content":"Hi"}, {"role": "assistant", "content": "Hello\\u00e9"}], "note": 1}'
    )
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + line.encode() + b"\r\n\xef\xbb\xbf" + line.encode())
    report = convert_file(source, output, Rules())
    assert output.read_text() == f"{line}\n{line}\n"
    assert (report.kept, report.changed, report.changes) == (1, 1, {"byte_order_mark_removed": 1})


def test_what_is_left_out_is_named_and_counted(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Hi", "mood": "good"}, {"from": "gpt", "value": "Hello", "train": None}]
    rows = [
        {"conversations": turns, "id": 7, "source": "web", "category": "talk", "empty": []},
        {"conversations": turns},
    ]
    written, report, _ = converted(tmp_path, *rows)
    assert report.unused_keys == {"id": 1, "source": 1, "conversations[].mood": 2}
    assert [row.get("category") for row in written] == ["talk", None]


def test_flag_of_an_answer_that_is_not_to_be_learnt_is_kept(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Go away", "train": False}]
    converted(
        tmp_path, {"conversations": [*turns, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
    )
    [row] = read_rows((tmp_path / "out.jsonl").read_bytes().splitlines())
    assert [turn.weight for turn in row.messages] == [None, 0, None, None]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_of_an_answer_are_kept(name: str, tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello", name: "A greeting."}]
    _, report, _ = converted(tmp_path, {"conversations": turns})
    [row] = read_rows((tmp_path / "out.jsonl").read_bytes().splitlines())
    assert (row.messages[-1].reasoning_content, report.unused_keys) == ("A greeting.", {})


def test_tools_of_a_text_become_functions(tmp_path: Path) -> None:
    row = next(row for _, row, turns in READABLE if turns is CALLED)
    [written], report, _ = converted(tmp_path, row)
    assert written["tools"] == [TOOL]
    assert report.changes["tools_to_functions"] == 1


def test_columns_are_read_under_the_names_that_are_given(tmp_path: Path) -> None:
    rules = Rules(columns={"Frage": "prompt", "Antwort": "response"})
    rows, report, _ = converted(tmp_path, {"Frage": "Hi", "Antwort": "Hello", "Thema": "x"}, rules=rules)
    assert rows == [{"messages": HI}]
    assert report.unused_keys == {"Thema": 1}


WORDS = st.text(st.characters(codec="ascii", exclude_categories=["C"], exclude_characters="<[#|:"), min_size=1).filter(
    lambda text: text == text.strip()
)
EXCHANGES = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3)
Exchanges = list[tuple[str, str]]


def as_sharegpt(exchanges: Exchanges, system: str) -> dict[str, Any]:
    turns = [
        {"from": name, "value": text} for pair in exchanges for name, text in zip(("human", "gpt"), pair, strict=True)
    ]
    return {"conversations": [{"from": "system", "value": system}, *turns] if system else turns}


def as_alpaca(exchanges: Exchanges, system: str) -> dict[str, Any]:
    *history, (question, answer) = exchanges
    return {
        "instruction": question,
        "input": "",
        "output": answer,
        "history": [list(pair) for pair in history],
        "system": system,
    }


def as_gemini(exchanges: Exchanges, system: str) -> dict[str, Any]:
    contents = [
        {"role": name, "parts": [{"text": text}]}
        for pair in exchanges
        for name, text in zip(("user", "model"), pair, strict=True)
    ]
    return {"contents": contents} | ({"systemInstruction": {"parts": [{"text": system}]}} if system else {})


def as_trl(exchanges: Exchanges, system: str) -> dict[str, Any]:
    turns = said(*(text for pair in exchanges for text in pair), system=system)
    return {"prompt": turns[:-1], "completion": turns[-1:]}


def as_preference(exchanges: Exchanges, system: str) -> dict[str, Any]:
    row = as_trl(exchanges, system)
    return {"prompt": row["prompt"], "chosen": row["completion"], "rejected": row["completion"]}


def as_kto(exchanges: Exchanges, system: str) -> dict[str, Any]:
    return {**as_trl(exchanges, system), "label": True}


def as_chatml(exchanges: Exchanges, system: str) -> dict[str, Any]:
    turns = said(*(text for pair in exchanges for text in pair), system=system)
    return {"text": "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)}


def as_llama3(exchanges: Exchanges, system: str) -> dict[str, Any]:
    turns = said(*(text for pair in exchanges for text in pair), system=system)
    header = "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>"
    return {"text": "<|begin_of_text|>" + "".join(header.format(**turn) for turn in turns)}


def as_llama2(exchanges: Exchanges, system: str) -> dict[str, Any]:
    start = f"<<SYS>>\n{system}\n<</SYS>>\n\n" if system else ""
    texts = [f"<s>[INST] {question} [/INST] {answer} </s>" for question, answer in exchanges]
    return {"text": "".join(texts).replace("[INST] ", f"[INST] {start}", 1)}


@pytest.mark.parametrize(
    "write", [as_sharegpt, as_alpaca, as_gemini, as_trl, as_preference, as_kto, as_chatml, as_llama3, as_llama2]
)
@given(exchanges=EXCHANGES, system=WORDS | st.just(""))
def test_chat_comes_back_from_every_form(
    write: Callable[[Exchanges, str], dict[str, Any]],
    exchanges: Exchanges,
    system: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("round")
    converted(folder, write(exchanges, system))
    [row] = read_rows((folder / "out.jsonl").read_bytes().splitlines())
    turns = said(*(text for pair in exchanges for text in pair), system=system)
    assert [(turn.role, turn.content) for turn in row.messages] == [(turn["role"], turn["content"]) for turn in turns]


@dataclass(frozen=True)
class Written:
    """How a program writes the parts of a chat with calls."""

    turns: str
    parts: str
    assistant: str
    text: Callable[[str], Any]
    call: Callable[[str, str, Any], Any]
    result: Callable[[str, str, Any], Any]


ANTHROPIC = Written(
    "messages", "content", "assistant",
    lambda text: {"type": "text", "text": text},
    lambda name, call_id, value: {"type": "tool_use", "id": call_id, "name": name, "input": value},
    lambda name, call_id, value: {"type": "tool_result", "tool_use_id": call_id, "content": json.dumps(value)},
)  # fmt: skip
BEDROCK = Written(
    "messages", "content", "assistant",
    lambda text: {"text": text},
    lambda name, call_id, value: {"toolUse": {"toolUseId": call_id, "name": name, "input": value}},
    lambda name, call_id, value: {"toolResult": {"toolUseId": call_id, "content": [{"json": value}]}},
)  # fmt: skip
GEMINI = Written(
    "contents", "parts", "model",
    lambda text: {"text": text},
    lambda name, call_id, value: {"functionCall": {"name": name, "args": value}},
    lambda name, call_id, value: {"functionResponse": {"name": name, "response": value}},
)  # fmt: skip
CALLED_VALUES = st.dictionaries(st.text("ab", min_size=1), st.integers() | st.text("xy\u00e9"), max_size=2)
CALLING = st.lists(st.tuples(WORDS, st.lists(st.tuples(st.sampled_from("fg"), CALLED_VALUES), max_size=3)), min_size=1, max_size=3)  # fmt: skip
"""Questions, and the calls with their arguments before each answer; a result is the arguments."""


@pytest.mark.parametrize("written", [ANTHROPIC, BEDROCK, GEMINI], ids=["anthropic", "bedrock", "gemini"])
@given(calling=CALLING)
def test_calls_and_results_come_back_from_blocks(
    written: Written, calling: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    turns: list[tuple[str, list[Any]]] = []
    expected: list[tuple[Any, ...]] = []
    numbers = iter(range(100))
    for question, calls in calling:
        turns.append(("user", [written.text(question)]))
        expected.append(("user", question))
        if calls:
            named = [(name, f"id{next(numbers)}", value) for name, value in calls]
            turns.append((written.assistant, [written.call(*call) for call in named]))
            turns.append(("user", [written.result(*call) for call in named]))
            expected.append(("assistant", [(name, value) for name, _, value in named]))
            expected += [("tool", name, value) for name, _, value in named]
        turns.append((written.assistant, [written.text("Done.")]))
        expected.append(("assistant", "Done."))
    row = {written.turns: [{"role": role, written.parts: blocks} for role, blocks in turns]}
    folder = tmp_path_factory.mktemp("calls")
    _, report, _ = converted(folder, row)
    assert not report.unused_keys
    [chat] = read_rows((folder / "out.jsonl").read_bytes().splitlines())
    names: dict[str, str] = {}
    found: list[tuple[Any, ...]] = []
    for turn in chat.messages:
        functions = {call["id"]: call["function"] for call in turn.tool_calls or ()}
        names |= {call_id: function["name"] for call_id, function in functions.items()}
        if turn.role == "tool":
            found.append(("tool", names.pop(turn.tool_call_id or ""), json.loads(turn.content or "")))
        elif functions:
            found.append((turn.role, [(function["name"], function["arguments"]) for function in functions.values()]))
        else:
            found.append((turn.role, turn.content))
    assert found == expected


def test_a_made_id_is_not_that_of_another_call(tmp_path: Path) -> None:
    calls = [{"functionCall": {"name": "f"}}, {"functionCall": {"name": "f", "id": "call_1"}}]
    results = [{"functionResponse": {"name": "f", "response": {}, "id": "call_1"}}, {"functionResponse": {"name": "f", "response": {}}}]  # fmt: skip
    turns = [("user", [{"text": "Hi"}]), ("model", calls), ("user", results), ("model", [{"text": "Done."}])]
    [row], _, _ = converted(tmp_path, {"contents": [{"role": role, "parts": parts} for role, parts in turns]})
    assert [call["id"] for call in row["messages"][1]["tool_calls"]] == ["call_2", "call_1"]
    assert [turn["tool_call_id"] for turn in row["messages"][2:4]] == ["call_1", "call_2"]


def test_parts_of_blocks_without_a_place_are_counted(tmp_path: Path) -> None:
    blocks = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    failed = [{"type": "tool_result", "tool_use_id": "call_1", "content": "no", "is_error": True}]
    anthropic = [ANTHROPIC_CALLS[0] | {"content": blocks}, ANTHROPIC_CALLS[1], {"role": "user", "content": failed}, ANTHROPIC_CALLS[3]]  # fmt: skip
    result = {"toolUseId": "call_1", "content": [{"text": "no"}], "status": "error"}
    bedrock = [*BEDROCK_CALLS[:2], {"role": "user", "content": [{"toolResult": result}]}, BEDROCK_CALLS[3]]
    config = {"tools": [], "toolChoice": {"any": {}}}
    _, report, _ = converted(tmp_path, {"messages": anthropic}, {"messages": bedrock, "toolConfig": config})
    assert report.unused_keys == {
        "messages[].content[].cache_control": 1,
        "messages[].content[].is_error": 1,
        "messages[].content[].toolResult.status": 1,
        "toolConfig.toolChoice": 1,
    }


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["user", "human", "gpt"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
BLOCK_KEYS = (
    "type", "text", "toolUse", "toolResult", "functionCall", "functionResponse", "reasoningContent", "input", "name", "id"
)  # fmt: skip
BLOCKS = st.lists(
    st.dictionaries(
        st.sampled_from(BLOCK_KEYS),
        VALUES
        | st.sampled_from(["text", "tool_use", "tool_result", "thinking"])
        | st.dictionaries(st.sampled_from(["name", "args", "input", "toolUseId", "content"]), VALUES, max_size=3),
        max_size=4,
    ),
    max_size=2,
)
KEYS = sorted({key for _, row, _ in READABLE for key in row} | {"images", "functions", "input", "preferred_output"})
TURNS = st.lists(
    st.dictionaries(st.sampled_from(["from", "role", "value", "content", "parts", "tool_calls", "weight"]), VALUES),
    max_size=3,
) | st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "model"])}, optional={"content": BLOCKS, "parts": BLOCKS}), max_size=3)  # fmt: skip


@given(row=st.dictionaries(st.sampled_from(KEYS), VALUES | TURNS, max_size=5), form=st.sampled_from([None, *RowForm]))
def test_any_row_is_written_or_has_a_coded_reason(
    row: dict[str, Any], form: RowForm | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    written, report, [account] = converted(folder, row, rules=Rules(form, options=CHOSEN.options))
    assert report.lines == 1
    if account["outcome"] == "dropped":
        assert account["reason"] in {*DropReason, *RowCode}
        assert written == []
    else:
        assert len(list(read_rows((folder / "out.jsonl").read_bytes().splitlines()))) == account["rows"] >= 1

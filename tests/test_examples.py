"""The example files: every row parses, and the demo's questions are not in the training rows of the model that answers
them.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
CORPUS, TRAIN, VALIDATION = "base_corpus.jsonl", "support.jsonl", "support.validation.jsonl"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines()]


def chats(name: str) -> list[list[dict[str, str]]]:
    return [row["messages"] for row in rows(name) if "messages" in row]


def normal(text: str) -> str:
    return " ".join("".join(c for c in text.lower() if c.isalnum() or c.isspace()).split())


def questions(name: str) -> set[str]:
    return {normal(turn["content"]) for chat in chats(name) for turn in chat if turn["role"] == "user"}


def answers(name: str) -> set[str]:
    return {turn["content"] for chat in chats(name) for turn in chat if turn["role"] == "assistant"}


def demo() -> list[dict[str, str]]:
    questions: list[dict[str, str]] = json.loads((EXAMPLES / "questions.json").read_text(encoding="utf-8"))
    return questions


@pytest.mark.parametrize("name", [CORPUS, TRAIN, VALIDATION])
def test_every_chat_ends_with_a_non_empty_answer(name: str) -> None:
    for chat in chats(name):
        roles = [turn["role"] for turn in chat]
        assert roles[roles[0] == "system" :] == ["user", "assistant"] * (len(roles) // 2)
        assert all(turn["content"].strip() == turn["content"] != "" for turn in chat)
        assert all(set(turn) == {"role", "content"} for turn in chat)


@pytest.mark.parametrize("name", [CORPUS, TRAIN, VALIDATION])
def test_no_row_is_there_twice(name: str) -> None:
    found = [json.dumps(row, sort_keys=True) for row in rows(name)]
    assert len(set(found)) == len(found)


def test_files_have_enough_rows() -> None:
    assert len(rows(CORPUS)) >= 60
    assert len(rows(TRAIN)) >= 80
    assert len(rows(VALIDATION)) >= 16


def test_no_question_is_in_two_files() -> None:
    assert not questions(TRAIN) & questions(VALIDATION)
    assert not questions(CORPUS) & (questions(TRAIN) | questions(VALIDATION))


def test_every_validation_answer_is_taught() -> None:
    assert answers(VALIDATION) <= answers(TRAIN)


def test_every_answer_is_short() -> None:
    assert max(len(answer.split()) for answer in answers(TRAIN)) <= 25


def test_base_model_knows_the_words_but_not_the_answers() -> None:
    text = "\n".join(row["text"] for row in rows(CORPUS) if "text" in row)
    missing = {word for answer in answers(TRAIN) for word in answer.split()} - set(text.split())
    assert not missing
    assert not answers(CORPUS) & answers(TRAIN)


def test_demo_questions_are_held_out_and_have_the_expected_answer() -> None:
    held_out = {chat[-2]["content"]: chat[-1]["content"] for chat in chats(VALIDATION)}
    assert len(demo()) == 3
    for entry in demo():
        assert entry["expect"] in held_out[entry["question"]]
        assert normal(entry["question"]) not in questions(TRAIN) | questions(CORPUS)


def test_base_model_was_never_taught_what_the_demo_expects() -> None:
    assert not [answer for answer in answers(CORPUS) for entry in demo() if entry["expect"] in answer]


# -- tools


def tool_rows() -> list[dict[str, Any]]:
    return rows("tools.jsonl")


def calls(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for turn in row["messages"] for call in turn.get("tool_calls", [])]


def test_tool_rows_are_rows_that_can_be_learnt() -> None:
    from shared.datasets.reader import read_rows

    with (EXAMPLES / "tools.jsonl").open("rb") as lines:
        assert len(list(read_rows(lines))) == len(tool_rows()) >= 30


def test_every_call_is_of_a_tool_that_the_row_describes() -> None:
    called = [(row, call) for row in tool_rows() for call in calls(row)]
    assert len(called) >= 20
    for row, call in called:
        (described,) = [tool["function"] for tool in row["tools"] if tool["function"]["name"] == call["name"]]
        assert set(json.loads(call["arguments"])) == set(described["parameters"]["required"])


def test_tool_rows_also_show_when_not_to_call_and_what_follows_a_result() -> None:
    ends = [row["messages"][-1] for row in tool_rows()]
    assert any("tools" in row and not calls(row) for row in tool_rows())
    assert any(
        row["messages"][-2]["role"] == "tool" and end["content"] for row, end in zip(tool_rows(), ends, strict=True)
    )


def test_base_model_never_saw_the_call_that_is_taught() -> None:
    text = "\n".join(row["text"] for row in rows(CORPUS) if "text" in row)
    assert "<tool_call>" in text
    assert not [call["name"] for row in tool_rows() for call in calls(row) if call["name"] in text]


def test_tickets_are_what_their_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = runpy.run_path(str(EXAMPLES / "tickets.py"))
    main: Any = script["main"]
    monkeypatch.setitem(main.__globals__, "HERE", tmp_path)
    main()
    for name in ("tickets.jsonl", "tickets.heldout.jsonl"):
        assert (tmp_path / name).read_text() == (EXAMPLES / name).read_text()


def test_no_sentence_or_wording_of_a_held_out_ticket_is_trained_on() -> None:
    script = runpy.run_path(str(EXAMPLES / "tickets.py"))
    trained, held_out = script["TRAINING"], script["HELD_OUT"]
    assert trained.problems.keys() == held_out.problems.keys()
    for kind, wordings in held_out.problems.items():
        assert not set(wordings) & set(trained.problems[kind])
    assert not set(held_out.sentences) & set(trained.sentences)
    assert not questions("tickets.heldout.jsonl") & questions("tickets.jsonl")

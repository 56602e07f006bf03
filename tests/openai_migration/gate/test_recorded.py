"""Recorded answers, and the labels of validation rows, as the earlier steps left them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openai_migration.gate.recorded import answer_of, labels, recorded_models, recorded_prompts
from openai_migration.record import golden_file
from shared.errors import ArtifactInvalid
from tests.support.fake_openai import KEY, TUNED, ServedOpenAI, chat_line
from tests.support.recorded_archive import PROJECT, completion, record_archive, with_rows


def test_prompts_have_the_answers_of_the_model_of_its_samples_and_of_its_base(
    openai: ServedOpenAI, tmp_path: Path
) -> None:
    with_rows(openai, 3)
    record_archive(openai, tmp_path / "a", samples=2, control=True)
    assert recorded_models(tmp_path / "a") == {TUNED: PROJECT}
    prompts = recorded_prompts(tmp_path / "a", PROJECT, TUNED)
    assert {prompt.request["messages"][0]["content"] for prompt in prompts} == {f"Question {n}?" for n in range(3)}
    for prompt in prompts:
        number = prompt.request["messages"][0]["content"].split()[1].strip("?")
        assert prompt.answer.text == f"Answer {number}."
        assert [sample.text for sample in prompt.samples] == [prompt.answer.text] * 2
        assert prompt.control
        assert prompt.control.text == "What?"
        assert prompt.sampling == {"temperature": 0, "seed": 1337, "max_completion_tokens": 2048}


def test_recordings_of_before_say_nothing_of_sampling_and_are_read(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 1)
    record_archive(openai, tmp_path / "a")
    path = tmp_path / "a" / golden_file(PROJECT, TUNED)
    line = json.loads(path.read_bytes())
    for answer in line["answers"]:
        del answer["sampling"]
    path.write_text(json.dumps(line) + "\n")
    assert recorded_prompts(tmp_path / "a", PROJECT, TUNED)[0].sampling["max_completion_tokens"] == 2048


def test_a_prompt_without_a_first_answer_is_none(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 2)
    record_archive(openai, tmp_path / "a", samples=1)
    path = tmp_path / "a" / golden_file(PROJECT, TUNED)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["answers"] = [each for each in lines[0]["answers"] if each["sample"] or each["model"] != TUNED]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [prompt.id for prompt in recorded_prompts(tmp_path / "a", PROJECT, TUNED)] == [lines[1]["id"]]


def test_a_torn_file_is_said(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 1)
    record_archive(openai, tmp_path / "a")
    path = tmp_path / "a" / golden_file(PROJECT, TUNED)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ArtifactInvalid, match="record"):
        recorded_prompts(tmp_path / "a", PROJECT, TUNED)


def test_labels_are_the_last_answers_of_validation_rows(openai: ServedOpenAI, tmp_path: Path) -> None:
    rows = [
        chat_line("A?", "B."),
        b"no json\n",
        json.dumps({"prompt": "C", "completion": " D"}).encode() + b"\n",
        json.dumps({"messages": [{"role": "user", "content": "no answer"}]}).encode() + b"\n",
    ]
    openai.fake.projects[KEY].contents["file-valid"] = b"".join(rows)
    contents = record_archive(openai, tmp_path / "a")
    assert sorted(label.text for label in labels(contents, PROJECT, TUNED).values()) == [" D", "B."]
    assert labels(contents, PROJECT, "ft:other") == {}


@pytest.mark.parametrize(
    "broken", [{}, {"choices": []}, {"choices": [None]}, {"choices": [{"message": "x"}]}, {"choices": {}}]
)
def test_what_is_not_a_completion_is_an_empty_answer(broken: dict[str, object]) -> None:
    assert answer_of(broken).spoken == ""


def test_a_legacy_function_call_is_a_tool_call() -> None:
    answer = answer_of(completion("", "function_call", function_call={"name": "f", "arguments": "{}"}))
    assert [call["function"]["name"] for call in answer.tool_calls] == ["f"]


@pytest.mark.parametrize("foreign", [b"[]", b'{"id": 1}', b"null", b"\xff", b'{"messages": []}'])
def test_a_foreign_line_is_named(openai: ServedOpenAI, tmp_path: Path, foreign: bytes) -> None:
    with_rows(openai, 1)
    record_archive(openai, tmp_path / "a")
    path = tmp_path / "a" / golden_file(PROJECT, TUNED)
    path.write_bytes(path.read_bytes() + foreign + b"\n")
    with pytest.raises(ArtifactInvalid, match="line 2, is not a recorded prompt"):
        recorded_prompts(tmp_path / "a", PROJECT, TUNED)


@pytest.mark.parametrize("field", ["response", "sha256", "file"])
def test_an_answer_that_is_not_what_was_kept_is_refused(openai: ServedOpenAI, tmp_path: Path, field: str) -> None:
    with_rows(openai, 1)
    record_archive(openai, tmp_path / "a")
    path = tmp_path / "a" / golden_file(PROJECT, TUNED)
    line = json.loads(path.read_bytes())
    line["answers"][0][field] = completion("Better.") if field == "response" else "../x"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ArtifactInvalid, match="line 1: the answer of"):
        recorded_prompts(tmp_path / "a", PROJECT, TUNED)

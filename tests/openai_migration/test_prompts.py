"""The prompts for a tuned model: from every source, none that was trained on, and the same ones in every run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.export import export_project
from openai_migration.archive.folder import Archive
from openai_migration.prompts import choose_prompts, spoken, to_request
from tests.support.fake_openai import KEY, NAMELESS, TUNED, ServedOpenAI, chat_line, stored_file

SYSTEM = {"role": "system", "content": "You are helpful. " * 100}


@pytest.fixture
def contents(openai: ServedOpenAI, tmp_path: Path) -> ArchiveContents:
    return exported(openai, tmp_path / "a")


def exported(openai: ServedOpenAI, folder: Path) -> ArchiveContents:
    with Archive(folder) as archive, openai.client(project="P") as client:
        export_project(client, archive)
        archive.finish()
    return ArchiveContents(folder)


def test_prompts_are_from_validation_rows_evals_and_chats(contents: ArchiveContents) -> None:
    choice = choose_prompts(contents, "P", TUNED, limit=100)
    assert Counter(prompt.source for prompt in choice.prompts) == {"validation": 4, "eval": 5, "chat": 1}
    # Both runs of the eval have items 0 and 1.
    assert choice.left_out == {"twice": 2}
    assert "--trained FILE" in choice.notes[0]


def test_the_choice_is_the_same_in_every_run_and_a_smaller_one_is_its_beginning(contents: ArchiveContents) -> None:
    ids = [prompt.id for prompt in choose_prompts(contents, "P", TUNED, limit=100).prompts]
    few = choose_prompts(contents, "P", TUNED, limit=3)
    assert [prompt.id for prompt in few.prompts] == ids[:3]
    assert few.left_out["over the limit of 3"] == 7


def test_a_users_own_prompts_come_first(contents: ArchiveContents, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_bytes(chat_line("Mine?", "x") + b'{"prompt": "Mine too?"}\nnot json\n[]\n')
    prompts = choose_prompts(contents, "P", TUNED, limit=100, own=own).prompts
    assert [prompt.source for prompt in prompts[:3]] == ["yours", "yours", prompts[2].source]
    assert {prompt.request["messages"][0]["content"] for prompt in prompts[:2]} == {"Mine?", "Mine too?"}


def test_a_prompt_that_was_trained_on_is_left_out_exactly_or_nearly(contents: ArchiveContents, tmp_path: Path) -> None:
    trained, own = tmp_path / "trained.jsonl", tmp_path / "own.jsonl"
    words = " ".join(f"word{number}" for number in range(60))
    trained.write_bytes(chat_line("Question  1?", "Other.") + chat_line(words, "x"))
    own.write_bytes(chat_line(f"{words} indeed", "x"))
    choice = choose_prompts(contents, "P", TUNED, limit=100, own=own, trained=[trained])
    assert choice.left_out == {"trained on": 1, "nearly trained on": 1, "twice": 2}
    assert not choice.notes


def test_a_long_system_text_makes_no_prompts_alike() -> None:
    one, other = ([SYSTEM, {"role": "user", "content": text}] for text in ("Where?", "When?"))
    assert spoken(one) == "<user> where?"
    assert spoken(one) != spoken(other)


def test_the_archives_training_file_is_known(openai: ServedOpenAI, tmp_path: Path) -> None:
    openai.fake.forbidden_files.clear()
    openai.fake.projects[KEY].contents["file-train"] = chat_line("Question 2?", "x")
    choice = choose_prompts(exported(openai, tmp_path / "a"), "P", TUNED, limit=100)
    assert choice.left_out["trained on"] == 1


def test_with_training_rows_only_a_tenth_is_recorded_and_the_reader_is_warned(
    openai: ServedOpenAI, tmp_path: Path
) -> None:
    project = openai.fake.projects[KEY]
    project.lists["evals"] = []
    trained = tmp_path / "trained.jsonl"
    trained.write_bytes(b"".join(chat_line(f"Row {number}?", "x") for number in range(300)))
    choice = choose_prompts(exported(openai, tmp_path / "a"), "P", NAMELESS, limit=100, trained=[trained])
    assert 15 < len(choice.prompts) < 45
    assert {prompt.source for prompt in choice.prompts} == {"training"}
    assert "favour the old model" in choice.notes[0]


def test_a_batch_of_another_models_prompts_is_left_out(openai: ServedOpenAI, tmp_path: Path) -> None:
    project = openai.fake.projects[KEY]
    project.lists["files"].append(stored_file("file-batch", "batch", "batch.jsonl"))
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "In bulk?"}]}
    project.contents["file-batch"] = json.dumps({"custom_id": "1", "body": body}).encode()
    prompts = choose_prompts(exported(openai, tmp_path / "a"), "P", TUNED, limit=100).prompts
    assert "batch" not in {prompt.source for prompt in prompts}


def test_prompts_of_batches_are_taken(openai: ServedOpenAI, tmp_path: Path) -> None:
    project = openai.fake.projects[KEY]
    project.lists["files"].append(stored_file("file-batch", "batch", "batch.jsonl"))
    body = {"model": TUNED, "messages": [{"role": "user", "content": "In bulk?"}]}
    project.contents["file-batch"] = json.dumps({"custom_id": "1", "body": body}).encode()
    prompts = choose_prompts(exported(openai, tmp_path / "a"), "P", TUNED, limit=100).prompts
    assert "batch" in {prompt.source for prompt in prompts}


@pytest.mark.parametrize(
    ("row", "request_"),
    [
        (
            {
                "messages": [
                    {"role": "user", "content": "Q", "name": "x"},
                    {"role": "assistant", "content": "A", "weight": 1},
                ]
            },
            {"messages": [{"role": "user", "content": "Q", "name": "x"}]},
        ),
        (
            {"input": {"messages": [{"role": "user", "content": "Q"}], "tools": [{"a": 1}]}, "preferred_output": []},
            {"messages": [{"role": "user", "content": "Q"}], "tools": [{"a": 1}]},
        ),
        ({"prompt": "Q", "completion": "A"}, {"messages": [{"role": "user", "content": "Q"}]}),
        ({"messages": [{"role": "assistant", "content": "A"}]}, None),
        ({"messages": "no"}, None),
        ({"messages": ["no"]}, None),
        ({"input": "text"}, None),
        ({}, None),
    ],
)
def test_the_prompt_of_a_row(row: dict[str, Any], request_: dict[str, Any] | None) -> None:
    assert to_request(row) == request_

"""Sample answers: the chosen rows, the token ids of a request, and that sharing a forward pass changes no answer."""

from __future__ import annotations

import pytest
import torch

from shared.model_card.evaluation_rows import MAX_CHARACTERS, shorten
from shared.tokenization.tokenizer import Tokenizer
from tests.support.training_runs import ROWS, write_rows
from worker.training.method import Method
from worker.training.model.load import packs
from worker.training.self_evaluation.sample_answers import (
    generate,
    prompt_of,
    read_prompts,
)
from worker.training.supervised import SupervisedMethod
from worker.training.trainer import set_up

CALL = {"id": "call00001", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "bug"}'}}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "", "parameters": {"type": "object"}}}
ROWS_OF_ALL_KINDS = [
    {"prompt": "word " * 5000, "response": "Long."},
    {
        "messages": [{"role": "user", "content": "What is a bug?"}, {"role": "assistant", "tool_calls": [CALL]}],
        "tools": [TOOL],
    },
    ROWS[2],
    *ROWS[:2],
]


@pytest.fixture(scope="module")
def labeller(tiny):
    return Tokenizer.load(tiny.base)


@pytest.fixture
def context(tiny, tmp_path):
    method: Method = SupervisedMethod()
    return set_up(tiny.plan_run(tmp_path), tmp_path / "run", tmp_path / "cache", method)


def prompts_of(labeller, tmp_path, lines, wanted=8):
    write_rows(tmp_path / "rows.jsonl", ROWS_OF_ALL_KINDS)
    return read_prompts(tmp_path / "rows.jsonl", lines, labeller, wanted)


def test_prompts_are_what_a_request_would_send(labeller, tokenizer, tmp_path):
    (prompt,) = prompts_of(labeller, tmp_path, [3])
    turns = ROWS[2]["messages"]
    served = tokenizer.apply_chat_template(turns[:-1], add_generation_prompt=True, tokenize=False)
    assert prompt.ids == tokenizer(served, add_special_tokens=False)["input_ids"]
    assert (prompt.line, prompt.role, prompt.text, prompt.turns) == (3, "user", "And then?", 4)
    assert prompt.reference == "It returns a result."
    assert prompt.system == next(turn["content"] for turn in turns if turn["role"] == "system")


def test_a_row_without_a_system_turn_has_none(labeller, tmp_path):
    assert [prompt.system for prompt in prompts_of(labeller, tmp_path, [2])] == [None]


def test_rows_come_in_the_order_that_was_chosen_and_long_ones_are_passed_over(labeller, tmp_path):
    assert [prompt.line for prompt in prompts_of(labeller, tmp_path, [1, 5, 4, 2, 3], wanted=3)] == [5, 4, 2]


def test_a_tool_call_is_shown_as_the_template_writes_it(labeller, tmp_path):
    (prompt,) = prompts_of(labeller, tmp_path, [2])
    assert "look_up" in prompt.reference
    assert "look_up" in labeller.decode(prompt.ids)


def test_the_last_supervised_answer_is_the_one_that_is_written(labeller, tmp_path):
    from shared.datasets.row_validation import parse_row

    line = b'{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, '
    line += b'{"role": "user", "content": "C"}, {"role": "assistant", "content": "D", "weight": 0}]}'
    prompt = prompt_of(parse_row(line, 1), labeller)
    assert prompt is not None
    assert (prompt.text, prompt.reference) == ("A", "B")


def greedy(context, ids, end_ids, tokens):
    """One prompt alone, without a cache."""
    found = []
    for _ in range(tokens):
        logits = context.model(input_ids=torch.tensor([ids + found]), use_cache=False).logits
        found.append(int(logits[0, -1].argmax()))
        if found[-1] in end_ids:
            break
    return found


@torch.no_grad()
def test_answers_of_shared_passes_are_those_of_each_prompt_alone(context, labeller, tmp_path):
    ids = [prompt.ids for prompt in prompts_of(labeller, tmp_path, [2, 3, 4, 5])]
    assert len({len(one) for one in ids}) > 1
    checks = []
    shared = generate(context, ids, labeller.end_ids, lambda: checks.append(1), new_tokens=12)
    assert shared == [greedy(context, one, labeller.end_ids, 12) for one in ids]
    assert checks
    assert packs(context.model)  # as before


def test_a_long_text_keeps_its_beginning_and_its_end():
    assert shorten("a" * MAX_CHARACTERS) == "a" * MAX_CHARACTERS
    long = shorten("a" * 5000 + "z")
    assert len(long) <= MAX_CHARACTERS + 3
    assert long.startswith("aaa")
    assert long.endswith("z")

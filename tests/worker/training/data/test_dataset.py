"""The rows that a run trains on, after some are held out and skipped, are the rows that its plan counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.contract.flat_keys import parse_contract
from shared.contract.plan import TrainingInputs, TrainingRun, validation_split
from shared.errors import Code, DatasetInvalid
from shared.hashing import digest_file
from shared.preflight.held_out import split_validation
from shared.preflight.pipeline import preflight
from shared.preflight.types import InputFile, JobRequest, Machine
from tests.support.tiny_base import TEMPLATE
from tests.support.training_runs import ROWS
from worker.training.data.dataset import read_data, refuse_weightless
from worker.training.data.row_order import RowOrder
from worker.training.model.load import load_tokenizer

VOCABULARY, SEED = 1 << 20, 7
WEIGHTLESS = {"enabled": True, "tool_trace_boost": 0.0}
TRACE = ROWS[0] | {"category": "tool_trace"}


def read(tiny, tokenizer, folder, rows, **sections):
    return read_data(tiny.plan_run(folder, rows, **sections), tokenizer, VOCABULARY, folder / "cache")


def read_with_one_that_weighs(tiny, tokenizer, folder, number):
    rows = [TRACE] * 21
    rows[int(number)] = ROWS[0]
    wanted = {"data": {"validation_split_ratio": 0.05}, "trajectory": WEIGHTLESS}
    return read(tiny, tokenizer, folder, rows, **wanted)


def test_the_only_row_that_weighs_may_not_be_held_out(tiny, tokenizer, tmp_path):
    training, held_out = split_validation(21, validation_split(21, 0.05), SEED)
    assert len(read_with_one_that_weighs(tiny, tokenizer, tmp_path, training[0]).training) == len(training)
    with pytest.raises(DatasetInvalid) as refused:
        read_with_one_that_weighs(tiny, tokenizer, tmp_path, held_out[0])
    assert refused.value.code == Code.NOTHING_SUPERVISED


def test_the_only_row_that_weighs_may_not_be_skipped(tiny, tokenizer, tmp_path):
    question, answer = ROWS[2]["messages"][1:3]
    cut_off = {"messages": [question, answer, question, answer | {"content": "It takes values. " * 8, "weight": 0}]}
    with pytest.raises(DatasetInvalid) as refused:
        read(tiny, tokenizer, tmp_path, [TRACE, TRACE, cut_off], exec={"seq_len": 24}, trajectory=WEIGHTLESS)
    assert refused.value.code == Code.NOTHING_SUPERVISED


def test_replayed_rows_that_weigh_are_something_to_learn():
    refuse_weightless([0.0, 0.0], [0.0, 0.5])
    with pytest.raises(DatasetInvalid):
        refuse_weightless([0.0, 0.0], [0.0])


def rows(difficulty: int, answers: int, unwritable: int) -> list[str]:
    """Rows, and such as the base's template cannot write: it has no place for a tool's call."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}
    refused = {"messages": [{"role": "user", "content": "1 + 1?"}, call]}
    chats = [{"prompt": f"question {number}", "response": "yes"} for number in range(answers)]
    return [json.dumps(row | {"difficulty": difficulty}) for row in (*chats, *[refused] * unwritable)]


@pytest.fixture
def base(tiny_base, tmp_path):
    """The tiny Qwen3 with a template that writes no tool's calls."""
    folder = Path(shutil.copytree(tiny_base, tmp_path / "base"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def plan_and_read(base, folder, lines, **sections):
    """The plan that the preflight makes, and the rows that the trainer reads for it."""
    path = folder / "rows.jsonl"
    path.write_text("\n".join(lines))
    asked = {"model": {"name": "tiny"}, "data": {"train_file": "f", "mode": "lenient"}, "artifact": {"publish": False}}
    request = JobRequest(parse_contract(asked | sections))
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    plan = preflight(request, entry, base, InputFile("f", digest_file(path), path), None, Machine()).plan
    run = TrainingRun(plan=plan, inputs=TrainingInputs(base=str(base), train=str(path), validation=None))
    tokenizer = load_tokenizer(base)
    return plan, read_data(run, tokenizer, len(tokenizer), folder / "cache")


# Fails while rows that lenient mode skips count as rows that are trained on.
def test_a_lenient_plan_holds_out_what_its_run_holds_out(base, tmp_path):
    plan, data = plan_and_read(base, tmp_path, rows(5, 30, 30))
    assert (plan.train.rows, plan.validation_rows) == (len(data.rows), len(data.validation)) == (30, 10)


@pytest.mark.parametrize("curriculum", [False, True])
def test_a_lenient_plan_has_the_steps_of_its_run(base, tmp_path, curriculum):
    sections = {
        "data": {"train_file": "f", "mode": "lenient", "validation_split_ratio": 0.0},
        "exec": {"batch_size": 4, "grad_accum": 1},
        "curriculum": {"enabled": curriculum},
    }
    plan, data = plan_and_read(base, tmp_path, [*rows(2, 30, 30), *rows(8, 10, 25)], **sections)
    assert plan.optimizer_steps == RowOrder(plan.contract, data.difficulties, len(data.replay)).total_steps


def test_held_out_rows_that_are_trained_on_too_are_known(tiny, tokenizer, tmp_path):
    """The two rows of one length differ in a token alone; each of the first kind is there often, and the other once."""
    training, held_out = split_validation(60, 10, SEED)
    chats = [{"prompt": "What is a bug?", "response": f"A mistake {number % 5}."} for number in range(60)]
    chats[int(held_out[3])] = {"prompt": "What is a bug?", "response": "A mistake 7."}
    data = read(tiny, tokenizer, tmp_path, chats, data={"validation_split_ratio": 0.05})
    assert len(data.training) == len(training) == 50
    assert data.copies == set(range(10)) - {3}


def test_of_rows_that_are_all_different_none_is_a_copy(tiny, tokenizer, tmp_path):
    chats = [{"prompt": f"{number} + 1?", "response": str(number + 1)} for number in range(60)]
    assert read(tiny, tokenizer, tmp_path, chats, data={"validation_split_ratio": 0.05}).copies == frozenset()

"""Probes: a few rows by token id, and the positions that an adapter was trained to change."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from shared.contract.sections import AdapterSection, QuantSection
from worker.run_folder import DEPTHS
from worker.training.data.prepared import Row
from worker.training.model.load import attach_lora, load_base
from worker.training.probes import (
    DEEP_POSITIONS,
    MAX_PROBES,
    MAX_TOKENS,
    make_probes,
    score_probes,
    write_probes,
)


def example(length: int, learnt: range) -> Row:
    weights = np.array([float(index in learnt) for index in range(length)], dtype=np.float32)
    return Row(1, np.arange(1000, 1000 + length, dtype=np.uint32), weights, 5, 1.0)


def written(folder, examples):
    write_probes(folder, make_probes(examples))
    return json.loads((folder / "probes.json").read_text())["probes"]


def test_positions_are_the_learnt_tokens(tmp_path):
    assert written(tmp_path, [example(6, range(3, 5))]) == [
        {"token_ids": [1000, 1001, 1002, 1003, 1004, 1005], "positions": [3, 4]}
    ]


def test_first_token_has_no_probability_so_it_is_not_a_position(tmp_path):
    assert written(tmp_path, [example(3, range(3))])[0]["positions"] == [1, 2]


def test_long_rows_keep_their_end_and_positions_move_along(tmp_path):
    length = MAX_TOKENS + 50
    probe = written(tmp_path, [example(length, range(length - 5, length))])[0]
    assert len(probe["token_ids"]) == MAX_TOKENS
    assert probe["positions"] == list(range(MAX_TOKENS - 5, MAX_TOKENS))
    assert [probe["token_ids"][position] for position in probe["positions"]] == list(
        range(1000 + length - 5, 1000 + length)
    )


def test_few_rows_are_enough_and_rows_without_positions_are_left_out(tmp_path):
    assert len(written(tmp_path, [example(5, range(2, 4))] * 9)) == MAX_PROBES
    assert written(tmp_path, [example(5, range(1))]) == []


@pytest.mark.parametrize(
    ("device", "window", "deepest"),
    [
        ("cpu", 0, None),
        ("cpu", MAX_TOKENS, None),
        ("cpu", 700, 700),
        ("cpu", 10_000, 4096),
        ("cuda", 10_000, 10_000),
        ("cuda", 100_000, 65_536),
    ],
)
def test_a_longer_window_has_a_probe_as_deep(device, window, deepest):
    """The probe is the longest row, whose last half is supervised, or rows end to end."""
    rows = [example(30, range(20, 30)), example(700, range(350, 700))]
    found = make_probes(rows, device=torch.device(device), window=window)
    assert len(found) == (2 if deepest is None else 3)
    if deepest is None:
        return
    probe = found[-1]
    assert (len(probe["token_ids"]), probe["stretched"]) == (deepest, deepest > 700)
    assert all(MAX_TOKENS <= at < deepest for at in probe["positions"])
    ranges = sum(MAX_TOKENS <= begin < deepest for begin in DEPTHS)
    assert len(probe["positions"]) == ranges * DEEP_POSITIONS


def test_rows_without_a_learnt_token_have_no_deep_probe():
    assert make_probes([example(700, range(0))], window=700) == []


def test_a_run_writes_probes_of_its_validation_rows(finished, tokenizer):
    probes = json.loads((finished.run_dir / "probes.json").read_text())["probes"]
    answers = [tokenizer.decode([probe["token_ids"][at] for at in probe["positions"]]) for probe in probes]
    assert answers == ["A mistake in a program.<|im_end|>", "It runs code and compares the result.<|im_end|>"]


def test_the_model_s_own_scores_are_written_next_to_the_positions(tiny, tmp_path):
    cpu = torch.device("cpu")
    model = attach_lora(load_base(tiny.base, QuantSection(), cpu), AdapterSection(rank=4, alpha=8), seed=0)
    write_probes(tmp_path, make_probes([example(9, range(4, 9))], model, cpu))
    (probe,) = json.loads((tmp_path / "probes.json").read_text())["probes"]
    ids = torch.tensor([probe["token_ids"]])
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0].log_softmax(-1)
    assert probe["trained"] == pytest.approx(
        [expected[at - 1, probe["token_ids"][at]].item() for at in probe["positions"]], abs=1e-5
    )


def test_a_run_records_what_the_model_says_of_its_probes(finished, tiny):
    from peft import PeftModel

    cpu = torch.device("cpu")
    model = PeftModel.from_pretrained(load_base(tiny.base, QuantSection(), cpu), finished.run_dir / "adapter")
    probes = json.loads((finished.run_dir / "probes.json").read_text())["probes"]
    for probe, scores in zip(probes, score_probes(model, probes, cpu), strict=True):
        assert probe["trained"] == pytest.approx(scores, abs=1e-5)

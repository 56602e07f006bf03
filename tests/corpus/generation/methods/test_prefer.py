"""Pairs of answers: the best and the worst according to a grader, as rows for DPO."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shared.datasets.preferences.rows import parse_pair
from shared.errors import InvalidRequest
from tests.corpus.generation.model_recipes import NUMBER, QUESTION, files_of, run, write
from tests.support.chat_server import chat_server

# The grader counts how much of the reference is in the answer.
SIMILAR = {
    "type": "text_similarity",
    "input": "{{ sample.output_text }}",
    "reference": "one two three four",
    "evaluation_metric": "rouge_1",
}
PAIR: dict[str, Any] = {"name": "pair", "method": "prefer", "model": "helper", "n": 3, "grader": SIMILAR}
ROW = {"prompt": "{{ item.q }}", "chosen": "{{ item.pair.chosen }}", "rejected": "{{ item.pair.rejected }}"}


def test_best_and_worst_become_a_row_for_dpo(tmp_path: Path) -> None:
    numbers = count()
    texts = ["one five", "one two three", "nothing"]
    with chat_server(lambda _: texts[next(numbers) % 3]) as server:
        recipe = write(tmp_path, rows=4, columns=[NUMBER, QUESTION, PAIR], row=ROW)
        _, rows = run(recipe, server.url, tmp_path / "rows", concurrency=1)
        first = files_of(tmp_path / "rows")
        run(recipe, server.url, tmp_path / "rows", concurrency=3)
        assert files_of(tmp_path / "rows") == first
        assert (len(server.bodies), {body["temperature"] for body in server.bodies}) == (12, {0.8})
    assert [(row["chosen"], row["rejected"]) for row in rows] == [("one two three", "nothing")] * 4
    for row in rows:
        parse_pair(json.dumps({key: value for key, value in row.items() if key != "id"}).encode())
    line = json.loads((tmp_path / "rows" / "part-00000.sources.jsonl").read_bytes().splitlines()[0])
    assert line["checks"]["pair"] == {"answers": 3, "chosen": pytest.approx(6 / 7), "rejected": 0.0}
    assert len(line["generator"]["pair"]["requests"]) == 3


def test_without_a_difference_no_row_is_written(tmp_path: Path) -> None:
    with chat_server(lambda body: body["messages"][-1]["content"]) as server:
        recipe = write(tmp_path, rows=4, columns=[NUMBER, QUESTION, PAIR], row=ROW)
        with pytest.raises(InvalidRequest, match="NO_PREFERENCE 4"):
            run(recipe, server.url, tmp_path / "rows")


def test_answers_that_are_cut_off_are_left_out_of_the_comparison(tmp_path: Path) -> None:
    numbers = count()
    cut = {"message": {"content": "one two three four"}, "finish_reason": "length"}
    texts = [cut, "one two", "nothing"]
    with chat_server(lambda _: texts[next(numbers) % 3]) as server:
        recipe = write(tmp_path, rows=1, columns=[NUMBER, QUESTION, PAIR], row=ROW)
        _, rows = run(recipe, server.url, tmp_path / "rows", concurrency=1)
    assert (rows[0]["chosen"], rows[0]["rejected"]) == ("one two", "nothing")


def test_a_grader_that_runs_code_needs_a_sandbox_before_anything_is_sent(tmp_path: Path) -> None:
    grader = {
        "type": "python",
        "source": "def grade(sample, item):\n    return 1.0 if 'two' in sample['output_text'] else 0.0\n",
    }
    recipe = write(tmp_path, rows=2, columns=[NUMBER, QUESTION, PAIR | {"grader": grader}], row=ROW)
    numbers = count()
    with chat_server(lambda _: ["one", "one two", "three"][next(numbers) % 3]) as server:
        with pytest.raises(InvalidRequest) as caught:
            run(recipe, server.url, tmp_path / "rows", sandbox="off")
        assert (caught.value.code, len(server.bodies)) == ("SANDBOX_UNAVAILABLE", 0)
        _, rows = run(recipe, server.url, tmp_path / "rows", concurrency=1)
    assert rows[0]["chosen"] == "one two"

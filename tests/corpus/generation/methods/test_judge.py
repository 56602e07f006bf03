"""Judgements of a model: a number within its range, a label, and rows that are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.errors import InvalidRequest
from tests.corpus.generation.model_recipes import ANSWER, NUMBER, QUESTION, ROW, run, write
from tests.support.chat_server import chat_server

JUDGE: dict[str, Any] = {"name": "stars", "method": "judge", "model": "helper", "prompt": "Rate: {{ item.a }}"}
RATED = ROW | {"rating": "{{ item.stars }}"}


def answer(results: list[Any]) -> Any:
    """Answers questions, and judges the answer to question n with result n."""

    def respond(body: dict[str, Any]) -> str:
        prompt = body["messages"][-1]["content"]
        if not prompt.startswith("Rate: "):
            return f"{prompt} The answer."
        return json.dumps({"steps": [], "result": results[int(prompt.split()[2])]})

    return respond


def test_a_number_is_rounded_and_becomes_the_rating(tmp_path: Path) -> None:
    columns = [NUMBER, QUESTION, ANSWER, JUDGE | {"least": 2}]
    with chat_server(answer([4, 4.6, 99, -3, 1, "4", True, 2])) as server:
        index, rows = run(write(tmp_path, rows=8, columns=columns, row=RATED), server.url, tmp_path / "rows")
    assert [row["rating"] for row in rows] == [4, 5, 5, 2]
    assert index.report["dropped"] == {"JUDGED_BAD": 2, "NOT_JUDGED": 2}
    schema = server.bodies[-1]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["result"] == {"type": "number"}
    line = json.loads((tmp_path / "rows" / "part-00000.sources.jsonl").read_bytes().splitlines()[0])
    assert line["generator"].keys() == {"a", "stars"}


def test_a_label_is_kept_if_it_passes(tmp_path: Path) -> None:
    column = JUDGE | {"name": "kind", "labels": ["good", "fair", "bad"], "passing": ["good", "fair"]}
    columns = [NUMBER, QUESTION, ANSWER, column]
    row = ROW | {"category": "{{ item.kind }}"}
    with chat_server(answer(["good", "bad", "fair", "best"])) as server:
        index, rows = run(write(tmp_path, rows=4, columns=columns, row=row), server.url, tmp_path / "rows")
    assert [row["category"] for row in rows] == ["good", "fair"]
    assert index.report["dropped"] == {"JUDGED_BAD": 1, "NOT_JUDGED": 1}


def test_an_answer_that_is_not_json_is_not_a_judgement(tmp_path: Path) -> None:
    with chat_server(lambda _: "I like it") as server, pytest.raises(InvalidRequest, match="NOT_JUDGED 3"):
        run(write(tmp_path, rows=3, columns=[NUMBER, QUESTION, ANSWER, JUDGE]), server.url, tmp_path / "rows")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"range": [5, 1]}, "must be ascending"),
        ({"passing": ["a"]}, "needs `labels`"),
        ({"labels": ["a", "b"], "least": 1}, "cannot be combined"),
        ({"labels": ["a", "b"], "passing": ["c"]}, "not one of `labels`"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    recipe = write(tmp_path, columns=[NUMBER, QUESTION, ANSWER, JUDGE | fields])
    with pytest.raises(InvalidRequest, match=reason) as caught:
        run(recipe, "http://127.0.0.1:9/v1", tmp_path / "rows")
    assert caught.value.code == "CORPUS_RECIPE_INVALID"


def test_a_check_may_be_a_judge_with_a_model_of_its_own(tmp_path: Path) -> None:
    """Its model is planned, needs terms, and its requests are stored like all others."""
    grader = {
        "type": "score_model",
        "model": "judge",
        "input": [{"role": "user", "content": "Rate: {{ sample.output_text }}"}],
        "pass_threshold": 0.5,
    }
    recipe = write(tmp_path, rows=3, columns=[NUMBER, QUESTION, ANSWER | {"check": [grader]}])
    with chat_server(answer([1, 0, 0.5])) as server:
        index, rows = run(recipe, server.url, tmp_path / "rows")
        assert [row["prompt"].split()[1] for row in rows] == ["0", "2"]
        assert index.report["dropped"] == {"CHECK_FAILED": 1}
        assert {body["model"] for body in server.bodies} == {"helper-large", "judge"}
        run(recipe, server.url, tmp_path / "rows")
        assert (len(server.bodies), server.repeated) == (6, 0)

"""Answers with tests: an answer stays only if it passes tests that fail without it."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shared.errors import InvalidRequest
from tests.corpus.generation.model_recipes import NUMBER, files_of, run, stage, write
from tests.support.chat_server import chat_server

PAIR: dict[str, Any] = {
    "name": "pair",
    "method": "self_align",
    "model": "helper",
    "text": "def f{{ item.n }}(x): return x",
    "n": 3,
}
ROW = {"prompt": "{{ item.pair.instruction }}", "response": "{{ item.pair.answer }}"}
RIGHT = "def twice(x):\n    return 2 * x"
TESTS = "def test_twice():\n    assert twice(3) == 6"


def blocks(code: str, tests: str) -> str:
    return f"Here it is.\n```python\n{code}\n```\nAnd its tests:\n```python\n{tests}\n```\n"


def model(answers: list[str]) -> Any:
    """A model that gives these answers to tasks, one after the other."""
    numbers = count()

    def respond(body: dict[str, Any]) -> str:
        prompt = body["messages"][-1]["content"]
        if prompt.startswith("List the programming concepts"):
            return "functions, arithmetic"
        if prompt.startswith("Write a programming task"):
            assert "functions, arithmetic" in prompt
            return "Write twice(x), which returns twice x."
        return answers[next(numbers) % len(answers)]

    return respond


def test_an_answer_that_passes_its_own_tests_stays(tmp_path: Path) -> None:
    answers = [blocks("def twice(x):\n    return x", TESTS), blocks(RIGHT, TESTS), "I cannot."]
    recipe = write(tmp_path, rows=1, columns=[NUMBER, PAIR], row=ROW)
    with chat_server(model(answers)) as server:
        [plan] = stage(recipe, server.url).plan(tmp_path / "rows")
        _, [row] = run(recipe, server.url, tmp_path / "rows", concurrency=1)
        assert plan.requests == len(server.bodies) == 5
        first = files_of(tmp_path / "rows")
        run(recipe, server.url, tmp_path / "rows")
        assert files_of(tmp_path / "rows") == first
        assert len(server.bodies) == 5
    assert (row["prompt"], row["response"]) == ("Write twice(x), which returns twice x.", RIGHT)
    line = json.loads((tmp_path / "rows" / "part-00000.sources.jsonl").read_bytes())
    assert line["checks"]["pair"] == {"tests": "passed", "answers": 3, "passing": 1}
    assert len(line["generator"]["pair"]["requests"]) == 5


CHEATS = {
    "proves nothing": "def test_it():\n    assert True",
    "is never run": "class Tests:\n    def test_it(self):\n        assert twice(1) == 5",
    "has no tests": "",
    "ends the process": "import os\nos._exit(0)",
    "exits": "def test_it():\n    raise SystemExit(0)",
    "does not end": "def test_it():\n    while True:\n        pass",
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_model_that_cheats_makes_no_row(tmp_path: Path, name: str) -> None:
    recipe = write(tmp_path, rows=1, columns=[NUMBER, PAIR | {"n": 1}], row=ROW)
    with (
        chat_server(model([blocks(RIGHT, CHEATS[name])])) as server,
        pytest.raises(InvalidRequest, match="TESTS_FAILED 1"),
    ):
        run(recipe, server.url, tmp_path / "rows")


def test_without_a_sandbox_nothing_is_sent(tmp_path: Path) -> None:
    recipe = write(tmp_path, columns=[NUMBER, PAIR], row=ROW)
    with chat_server(model([])) as server:
        with pytest.raises(InvalidRequest) as caught:
            run(recipe, server.url, tmp_path / "rows", sandbox="off")
        assert (caught.value.code, len(server.bodies)) == ("SANDBOX_UNAVAILABLE", 0)

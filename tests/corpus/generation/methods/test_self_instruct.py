"""New instructions differ from the given ones and from each other, and do not depend on the number of concurrent
requests.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from corpus.generation.methods.self_instruct import LEAST_SIMILAR, InstructionPool, _rouge_l, _words
from shared.errors import InvalidRequest, NotFound
from shared.graders.text_similarity import similarity
from tests.corpus.generation.model_recipes import files_of, run, write
from tests.support.chat_server import chat_server

SEEDS = [
    "Write a poem about rain.",
    "Name three rivers of Europe.",
    "Explain why the sky is blue.",
    "Translate good morning into French.",
    "Sort these numbers by size.",
    "Summarise the text in a sentence.",
    "Give a recipe for bread without yeast.",
]
NEW: dict[str, Any] = {"name": "q", "method": "self_instruct", "model": "helper", "seeds": "seeds.txt"}
COLUMNS = [NEW, {"name": "a", "method": "answer", "model": "helper", "prompt": "{{ item.q }}"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "seeds.txt").write_text("\n".join(SEEDS) + "\n")
    return tmp_path


def respond(body: dict[str, Any]) -> str:
    """Instructions of words that only their examples decide, after pauses of different lengths."""
    prompt = body["messages"][-1]["content"]
    if not prompt.startswith("Here are examples"):
        return f"The answer: {prompt}"
    digest = hashlib.sha256(prompt.encode()).hexdigest()
    time.sleep(int(digest[:2], 16) / 50_000)
    return "9. Do " + " ".join(digest[place : place + 4] for place in range(0, 40, 4)) + "\n10. And one more."


def test_instructions_do_not_depend_on_concurrency(folder: Path) -> None:
    recipe = write(folder, rows=50, columns=COLUMNS)
    with chat_server(respond) as server:
        _, rows = run(recipe, server.url, folder / "one", concurrency=1)
        sent = len(server.bodies)
        prompts = [body["messages"][0]["content"] for body in server.bodies]
        run(recipe, server.url, folder / "many", concurrency=9)
        assert len(server.bodies) == 2 * sent
    assert files_of(folder / "many") == files_of(folder / "one")
    assert len({row["prompt"] for row in rows}) == len(rows) == 50
    assert all(row["prompt"].startswith("Do ") and "\n" not in row["prompt"] for row in rows)
    asked = [prompt.split("\n\n")[1].split("\n") for prompt in prompts if prompt.startswith("Here")]
    assert {len(examples) for examples in asked[:20]} == {6}
    assert {len(examples) for examples in asked[20:]} == {8}
    made = {row["prompt"] for row in rows}
    for number, examples in enumerate(asked):
        texts = [example.split(". ", 1)[1] for example in examples]
        assert set(texts[:6]) <= set(SEEDS)
        assert set(texts[6:]) <= {row["prompt"] for row in rows[: number // 20 * 20]} <= made


def test_similar_instructions_are_left_out(folder: Path) -> None:
    with chat_server(
        lambda body: "Name three rivers of Asia." if "Here" in body["messages"][0]["content"] else "Ob"
    ) as server:
        with pytest.raises(InvalidRequest, match="NOT_NEW 5"):
            run(write(folder, rows=5, columns=COLUMNS), server.url, folder / "rows")
        assert len(server.bodies) == 5, "no answer is requested for them"
    text = "Describe how a clock with a pendulum keeps the time."
    with chat_server(lambda body: text if "Here" in body["messages"][0]["content"] else "It swings.") as server:
        index, rows = run(write(folder, rows=30, columns=COLUMNS), server.url, folder / "same", concurrency=3)
    assert [row["prompt"] for row in rows] == [text]
    assert index.report["dropped"] == {"NOT_NEW": 29}


def test_rouge_l_is_that_of_the_graders() -> None:
    for one, other in (
        (SEEDS[0], SEEDS[0]),
        (SEEDS[1], "Name three rivers of Asia."),
        (SEEDS[1], "Name four large rivers of Asia."),
    ):
        assert _rouge_l(_words(one), _words(other)) == pytest.approx(similarity("rouge_l", one, other))
    pool = InstructionPool(SEEDS)
    assert not pool.is_new("", in_round=True)
    assert pool.is_new("x y z", in_round=True)
    assert LEAST_SIMILAR == 0.7


def test_too_few_seeds_and_a_missing_file(folder: Path) -> None:
    (folder / "seeds.txt").write_text("one\n" * 10)
    with pytest.raises(InvalidRequest, match="1 different instructions; 6 are needed") as caught:
        run(write(folder, columns=COLUMNS), "http://127.0.0.1:9/v1", folder / "rows")
    assert caught.value.param == "columns.0.seeds"
    (folder / "seeds.txt").unlink()
    with pytest.raises(NotFound):
        run(write(folder, columns=COLUMNS), "http://127.0.0.1:9/v1", folder / "rows")


def test_more_rows_keep_the_earlier_ones(folder: Path) -> None:
    with chat_server(respond) as server:
        _, few = run(write(folder, columns=COLUMNS), server.url, folder / "rows", 25)
        sent = len(server.bodies)
        _, many = run(write(folder, columns=COLUMNS), server.url, folder / "rows", 45)
        assert (len(server.bodies), server.repeated) == (90, 0)
    assert (sent, many[:25]) == (50, few)
    assert json.dumps(few) != json.dumps(many[20:])

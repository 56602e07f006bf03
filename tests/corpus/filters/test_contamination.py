"""Contamination: planted items are found whole, truncated or reordered; quoted boilerplate is not reported."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.filters.contamination import CONTAMINATED, NOTICED, EvalIndex, Overlap
from corpus.filters.eval_items import EvalContent, read_items, sides_of
from shared.errors import Code, MensError

RANDOM = random.Random(5)
LICENCE = " ".join(f"licence{n}" for n in range(40))


def words(count: int) -> str:
    return " ".join(f"w{RANDOM.randrange(10**9)}" for _ in range(count))


ITEMS = [{"prompt": f"{LICENCE} {words(60)}", "expected": words(30)} for _ in range(200)]
SHORT = [{"question": "What is the capital of France?", "answer": "Paris"}]
INDEX = EvalIndex.of([EvalContent("long", ITEMS), EvalContent("short", SHORT)])


def found(text: str, *users: str, index: EvalIndex = INDEX) -> Overlap | None:
    return index.overlaps([([text], users)])[0]


def own(item: int) -> str:
    return ITEMS[item]["prompt"].removeprefix(f"{LICENCE} ")


def test_whole_item_is_found_anywhere_in_a_row_with_its_place() -> None:
    overlap = found(f"{words(10)} {own(3).upper()}  {words(10)}")
    assert overlap == Overlap("long", 4, "prompt", pytest.approx(53 / 60, abs=0.02), (11, 70))


def test_reference_alone_is_found() -> None:
    overlap = found(f"An answer: {ITEMS[7]['expected']}")
    assert overlap
    assert (overlap.item, overlap.side, overlap.score) == (8, "reference", 1.0)


def test_cut_item_is_found_from_half_of_it_and_noticed_below() -> None:
    text = own(5).split()
    scores = {kept: found(" ".join(text[:kept])) for kept in (45, 25, 12)}
    assert scores[45]
    assert scores[45].score >= CONTAMINATED
    assert scores[25]
    assert scores[25].score < CONTAMINATED
    assert scores[12] is None


def test_reordered_sentences_are_found() -> None:
    text = own(9).split()
    parts = [" ".join(text[begin : begin + 20]) for begin in (40, 0, 20)]
    overlap = found(f" {words(3)} ".join(parts))
    assert overlap
    assert overlap.score >= CONTAMINATED


def test_what_all_items_share_is_not_counted() -> None:
    assert found(LICENCE) is None
    assert found(f"{LICENCE} {words(60)}") is None


def test_short_prompt_is_found_only_as_a_whole_turn_of_the_user() -> None:
    question = "what is the  capital of france?"
    overlap = found(question, question)
    assert overlap
    assert (overlap.eval, overlap.score) == ("short", 1.0)
    assert found("Paris", "Where is Paris?") is None
    assert found(f"{question} I wonder", f"{question} I wonder") is None


def test_renamed_eval_gives_the_same_verdicts() -> None:
    other = EvalIndex.of([EvalContent("renamed", ITEMS)])
    for text in (own(3), own(5)[:200], words(50)):
        one, two = found(text), found(text, index=other)
        assert (one and one.score) == (two and two.score)
    assert EvalContent("a", ITEMS).digest() == EvalContent("b", ITEMS).digest()


def test_saved_index_finds_the_same(tmp_path: Path) -> None:
    INDEX.save(tmp_path / "index")
    loaded = EvalIndex.load(tmp_path / "index")
    for text in (own(3), LICENCE, "what is the capital of France?"):
        assert found(text, text, index=loaded) == found(text, text)


def test_empty_index_and_empty_rows() -> None:
    index = EvalIndex.of([])
    assert index.overlaps([(["a b"], ["a b"]), ([], [])]) == [None, None]
    assert INDEX.overlaps([]) == []


@pytest.mark.parametrize(
    ("item", "prompt", "reference"),
    [
        ({"question": "Q", "answer": "A", "id": "7"}, "Q", "A"),
        ({"item": {"prompt": "Q", "expected": ["A", "B"]}}, "Q", "A\nB"),
        (
            {
                "messages": [
                    {"role": "system", "content": "S"},
                    {"role": "user", "content": [{"type": "text", "text": "Q"}]},
                    {"role": "assistant", "content": "A"},
                ]
            },
            "text\nQ",
            "A",
        ),
        ({"task": "Q", "expect": "A"}, "Q", "A"),
    ],
)
def test_sides_of_an_item(item: dict[str, Any], prompt: str, reference: str) -> None:
    assert sides_of(item) == (prompt, reference)


def test_files_of_items(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n\n{"prompt": "b"}\n')
    (tmp_path / "b.json").write_text('[{"prompt": "a"}, {"prompt": "b"}]')
    assert read_items(tmp_path / "a.jsonl").items == read_items(tmp_path / "b.json").items
    for name, text in {"c.jsonl": "{", "d.jsonl": "", "e.jsonl": "3\n"}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(MensError) as raised:
            read_items(tmp_path / name)
        assert raised.value.code == Code.CORPUS_RECIPE_INVALID
    with pytest.raises(MensError) as raised:
        read_items(tmp_path / "absent")
    assert raised.value.code == Code.CORPUS_SOURCE_MISSING


def runs_of(text: str) -> set[tuple[str, ...]]:
    split = text.lower().split()
    return {tuple(split[begin : begin + 8]) for begin in range(len(split) - 7)}


def best_share(items: list[dict[str, str]], row: str) -> float:
    """The largest share of a side of an item, computed run by run."""
    best = 0.0
    for key in ("prompt", "answer"):
        sides = [runs_of(item[key]) for item in items]
        counts = Counter(run for runs in sides for run in runs)
        weights = {
            run: math.log1p(len(items) / count) for run, count in counts.items() if count <= max(1, len(items) / 100)
        }
        for runs in sides:
            if total := math.fsum(weights.get(run, 0) for run in runs):
                best = max(best, math.fsum(weights.get(run, 0) for run in runs & runs_of(row)) / total)
    return best


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), items=st.sampled_from([1, 2, 7, 120, 400]), vocabulary=st.sampled_from([2, 5, 50]))
def test_shares_are_those_of_runs_compared_one_by_one(seed: int, items: int, vocabulary: int) -> None:
    drawn = random.Random(seed)

    def text() -> str:
        return " ".join(f"W{drawn.randrange(vocabulary)}" for _ in range(drawn.choice((0, 7, 8, 9, 30))))

    # Several items share a run; of 400 items, up to four may before the run stops counting.
    shared = [text() for _ in range(items // 3 + 1)]
    content = [{"prompt": f"{drawn.choice(shared)} {text()}", "answer": text()} for _ in range(items)]
    rows = [f"{text()}\n{drawn.choice(content)[key]} {text()}" for key in ("prompt", "answer") * 5]
    overlaps = EvalIndex.of([EvalContent("e", content)]).overlaps([([row], []) for row in rows])
    for row, overlap in zip(rows, overlaps, strict=True):
        share = best_share(content, row)
        if abs(share - NOTICED) < 1e-6:  # either side of the limit is right
            continue
        assert (overlap.score if overlap else 0.0) == (pytest.approx(share, abs=2e-3) if share >= NOTICED else 0.0)

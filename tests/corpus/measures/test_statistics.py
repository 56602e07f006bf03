"""Statistics: rows by source and origin, variety, and a note if synthetic rows are less varied than people's."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import isclose, log2
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from corpus.measures.statistics import entropy, measure
from corpus.provenance import Provenance
from corpus.shards import StageWriter
from tests.corpus.mixing.mixes import write_rows


@given(st.lists(st.integers(0, 50), max_size=8))
def test_entropy_is_between_nothing_and_that_of_equal_shares(counts: list[int]) -> None:
    classes = len([count for count in counts if count])
    assert 0 <= entropy(counts) <= log2(max(1, classes)) + 1e-9
    assert isclose(entropy([7] * 4), 2.0)


def test_rows_are_counted_by_source_and_poor_synthetic_rows_are_named(tmp_path: Path) -> None:
    with StageWriter(tmp_path, stage="x", key="k") as writer:
        for number in range(40):
            human = {
                "prompt": " ".join(f"{number}-{place}" for place in range(1 + number * 40)),
                "response": f"answer {number} of a person",
                "origin": "human",
            }
            writer.write_row(human, Provenance(id="", source="file:a", locator={}, stages=["pull@1", "mix@2"]))
            made = {"prompt": "the same words", "response": f"the same words {number // 20}", "origin": "synthetic"}
            writer.write_row(made, Provenance(id="", source="generate:b", locator={}, stages=["generate@1"]))
    found = measure(tmp_path / "part-00000.jsonl")
    assert found.rows == 80
    assert found.sources == {"file:a": 40, "generate:b": 40}
    assert found.stages == {"generate": 40, "pull → mix": 40}
    assert found.exact_duplicates == 38
    assert found.diversity <= (80 - 38) / 80
    assert {name: one.rows for name, one in found.origins.items()} == {"human": 40, "synthetic": 40}
    assert found.origins["synthetic"].distinct_2 < 0.1
    assert any("half as varied" in note and "pairs of words" in note for note in found.notes)


def test_distinct_pairs_are_those_of_a_plain_count(tmp_path: Path) -> None:
    texts = ["a b c a b", "b c d", "A b"]
    write_rows(tmp_path / "a.jsonl", *({"prompt": text, "response": "x"} for text in texts))
    pairs = Counter(pair for text in texts for words in [[*text.lower().split(), "x"]] for pair in pairwise(words))
    found = measure(tmp_path / "a.jsonl").origins["(none)"]
    assert found.distinct_2 == round(len(pairs) / pairs.total(), 4)
    assert measure(tmp_path / "a.jsonl").sources == {}
